"""`draftproof gc`: what the caches cost, and what no kept run needs any more."""

from __future__ import annotations

import fcntl
import json
import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from tasks.store import home
from tasks.verdict import BadInput

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run as MlflowRun

_UNFINISHED_DAYS = 7
"""An interrupted stage goes on from what it left; after so long nobody is coming back."""
_SMALL = ("verify", "benchmark")
"""No run names these products; they are kept as long as any run of their time is."""


@dataclass(frozen=True)
class Entry:
    """A folder below `DRAFTPROOF_HOME`, and why it stays; None = nobody needs it."""

    kind: str
    path: Path
    size: int
    kept_for: str | None


def collect_here(*, yes: bool) -> int:
    """Show what there is; with `yes` remove what nobody needs."""
    from tasks.ledger.store import connect, tracking_uri, usable

    client = connect()
    with usable(tracking_uri()):
        found = entries(client)
        active = _active(client) if yes else None
    garbage = [entry for entry in found if entry.kept_for is None]
    Console().print(_table(found))
    total = sum(entry.size for entry in garbage)
    if not garbage:
        print("nothing to remove")
    elif active:
        raise BadInput(
            "draftproof gc --yes", found=f"run {active} still running", expected="no running run", do="Wait for it: it may use any product."
        )
    elif not yes:
        print(f"{len(garbage)} folders ({total / 1e9:.2f} GB) are needed by no run that MLflow still has: draftproof gc --yes removes them")
    else:
        for entry in garbage:
            _remove(entry)
        print(f"removed {len(garbage)} folders, {total / 1e9:.2f} GB")
    return 0


def entries(client: MlflowClient) -> list[Entry]:
    """Every product, unfinished one and run folder. Deleting a run in MLflow is how a user says that it is not kept."""
    products, runs, oldest = _needed(client)
    return [*_products(products, oldest), *_run_folders(runs)]


def _active(client: MlflowClient) -> str | None:
    """A run that is running: what it has read and not yet put on record would look like nobody's."""
    from tasks.ledger import owner

    found = _runs(client, "attributes.status = 'RUNNING'")
    return next((run.info.run_name for run in found if not owner.is_dead(run.data.tags)), None)


def _runs(client: MlflowClient, query: str = "") -> Iterator[MlflowRun]:
    from tasks.ledger.history import experiments
    from tasks.ledger.store import pages

    for experiment in experiments(client):
        yield from pages(client.search_runs, experiment_ids=[experiment.experiment_id], filter_string=query)


def _products(needed: dict[Path, str], oldest: float) -> Iterator[Entry]:
    for folder in _folders("cache", "*/*/"):
        stage = folder.parent.name
        if folder.name.endswith(".partial"):
            fresh = time.time() - folder.stat().st_mtime < _UNFINISHED_DAYS * 86400
            yield Entry(stage, folder, _size(folder), "unfinished" if fresh or _locked(folder) else None)
        elif stage in _SMALL:
            yield Entry(stage, folder, _size(folder), "runs of its time" if folder.stat().st_mtime >= oldest else None)
        else:
            yield Entry(stage, folder, _size(folder), needed.get(folder))


def _run_folders(runs: set[str]) -> Iterator[Entry]:
    for folder in _folders("runs", "*/"):
        yield Entry("runs", folder, _size(folder), folder.name if folder.name in runs else None)


def _folders(place: str, pattern: str) -> list[Path]:
    """Folders that lie where they seem to: what a link inside of `place` leads to is not ours to remove."""
    root = home() / place
    return sorted(folder for folder in root.glob(pattern) if folder.resolve() == root.resolve() / folder.relative_to(root))


def _needed(client: MlflowClient) -> tuple[dict[Path, str], set[str], float]:
    """Product folder to the run that refers to it; the ids of all runs; when the oldest of them began."""
    from tasks.deploy.kept import kept_servers
    from tasks.promote import served_files

    products: dict[Path, str] = {}
    runs: set[str] = set()
    oldest = time.time()
    for run in _runs(client):
        runs.add(run.info.run_id)
        oldest = min(oldest, run.info.start_time / 1000)
        products |= dict.fromkeys(_referred(client, run.info.run_id), run.info.run_name)
    products |= {home() / "cache" / "release" / sha256: "a registered version" for sha256 in served_files(client)}
    for server in kept_servers():
        products |= dict.fromkeys(_product_folders([server.target, *([server.drafter] if server.drafter else [])]), f"server {server.url}")
    return products, runs, oldest


def _referred(client: MlflowClient, run_id: str) -> Iterator[Path]:
    """The product folders that a stage's run names in `products.json`."""
    if "products.json" not in {file.path for file in client.list_artifacts(run_id)}:
        return
    with TemporaryDirectory() as folder:
        named = json.loads(Path(client.download_artifacts(run_id, "products.json", folder)).read_text(encoding="utf-8"))
    yield from _product_folders(Path(product["path"]) for product in named.values())


def _product_folders(paths: Iterable[Path]) -> Iterator[Path]:
    """The products that these paths lie in; what is not ours is left out."""
    cache = home() / "cache"
    for path in paths:
        if path.is_relative_to(cache):
            yield cache.joinpath(*path.relative_to(cache).parts[:2])


def _locked(partial: Path) -> bool:
    """Whether a living process is making it (`tasks.store.Store.make`)."""
    lock = partial.with_name(partial.name.removesuffix(".partial") + ".lock")
    if not lock.exists():
        return False
    with lock.open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def _remove(entry: Entry) -> None:
    """The folder is renamed first: what is half removed is never taken for a product."""
    doomed = entry.path.with_name(f"{entry.path.name}.partial") if not entry.path.name.endswith(".partial") else entry.path
    if doomed != entry.path:
        shutil.rmtree(doomed, ignore_errors=True)
        entry.path.rename(doomed)
    shutil.rmtree(doomed)


def _size(folder: Path) -> int:
    """Bytes on disk; files that share them (features kept while answering) count for each folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _table(found: list[Entry]) -> Table:
    table = Table("kind", "folders", "GB", "of them needed by nobody", title=str(home()), title_justify="left")
    for kind in sorted({entry.kind for entry in found}):
        ours = [entry for entry in found if entry.kind == kind]
        garbage = [entry for entry in ours if entry.kept_for is None]
        sizes = [f"{sum(entry.size for entry in some) / 1e9:.2f}" for some in (ours, garbage)]
        table.add_row(kind, str(len(ours)), sizes[0], f"{len(garbage)} ({sizes[1]} GB)")
    return table
