"""Content-keyed folders: a stage's product is made once per content of its inputs, and never half.

A product lives in `<home>/cache/<stage>/<key>/`. It is made in `<key>.partial/`, which survives an
interruption so that the stage can go on from there, and is renamed when it is whole.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from tasks.verdict import BadInput, MachineTrouble

_PRODUCT = "product.json"
_UNFINISHED = ".unfinished"
_LENT = "lent.lock"


def home() -> Path:
    """`DRAFTPROOF_HOME`, else `.draftproof` in the project; always absolute, since working directories move."""
    default = Path(__file__).resolve().parent.parent / ".draftproof"
    return Path(os.environ.get("DRAFTPROOF_HOME") or default).expanduser().resolve()


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sha256_json(value: Any) -> str:
    """Hex SHA-256 of a JSON value in canonical form. Raises TypeError for what JSON cannot hold."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def sha256_folder(folder: Path, names: Iterable[str] | None = None) -> str:
    """Hex SHA-256 over the relative names and contents of a folder's files (or of those named)."""
    files = sorted(names) if names is not None else sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
    return sha256_json([[name, sha256_file(folder / name)] for name in files])


def code_digest(*packages: str) -> str:
    """Digest of the source of tasks' sub-packages (`"train"`) and modules (`"store.py"`)."""
    root = Path(__file__).resolve().parent
    sources: list[Path] = []
    for name in packages:
        path = root / name
        sources += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return sha256_json([[str(p.relative_to(root)), sha256_file(p)] for p in sources])


def versions(*distributions: str) -> dict[str, str | None]:
    """Installed version of each distribution, None where it is not installed."""

    def of(name: str) -> str | None:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            return None

    return {name: of(name) for name in distributions}


def read_small(path: Path, largest: int = 1 << 20) -> str:
    """Text of a small file that may be somebody else's: never more than `largest` bytes are read.

    Raises OSError where there is no file, a device or a pipe among them, and ValueError for a larger one and for no UTF-8.
    """
    if not path.is_file():  # /dev/zero has no end, and a pipe waits for ever
        raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
    with path.open("rb") as stream:
        content = stream.read(largest + 1)
    if len(content) > largest:
        raise ValueError(f"{path.stat().st_size:,} bytes, more than {largest:,}")
    return content.decode("utf-8")


def write_atomic(path: Path, text: str) -> None:
    """Write a text file whole or not at all: a reader never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=_UNFINISHED)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@contextmanager
def locked(path: Path, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold an exclusive lock on `path` (created if absent); released by the kernel if the holder dies.

    `waiting` is called once when somebody else holds it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield


@contextmanager
def machine(say: Callable[[str], None]) -> Iterator[None]:
    """One run at a time trains, serves and measures, from whatever terminal or worker it was started: two would disturb each other."""
    with locked(home() / "machine.lock", lambda: say("another run has the machine: waiting for it")):
        # A run that was killed has left the lock, and what it asked of a worker on this machine may still be at work.
        with locked(home() / _LENT, lambda: say("a job of an earlier run still has the machine: waiting for it")):
            pass
        yield


def lent_machine() -> AbstractContextManager[None]:
    """For a job that a run asks of another process on the machine that the run has."""
    return locked(home() / _LENT)


def need_disk(folder: Path, needed: int, purpose: str) -> None:
    """Raise MachineTrouble when the disk of `folder` has less than `needed` bytes free."""
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise MachineTrouble(
            f"{folder}: {free / 1e9:.1f} GB free; {purpose} needs about {needed / 1e9:.1f} GB. "
            "Free some space (earlier products lie in DRAFTPROOF_HOME/cache), or set DRAFTPROOF_HOME to a larger disk."
        )


class Store:
    """The cache of stage products below one home."""

    def __init__(self, root: Path | None = None, *, refresh: frozenset[str] = frozenset()) -> None:
        self.root = (root or home()) / "cache"
        self.refresh = refresh
        self.hits: set[str] = set()

    def key(self, stage: str, inputs: Mapping[str, Any]) -> str:
        """16 hex digits for a stage's inputs (JSON values: contents' hashes, config, versions, code digest)."""
        return sha256_json([stage, dict(inputs)])[:16]

    def folder(self, stage: str, key: str) -> Path:
        return self.root / stage / key

    def find(self, stage: str, key: str) -> dict[str, Any] | None:
        """The product of an earlier run, or None. Its files are checked against the hashes noted when it was made.

        Raises BadInput when a file of a finished product is gone or was changed.
        """
        folder = self.folder(stage, key)
        if stage in self.refresh or not (folder / _PRODUCT).exists():
            return None
        noted = json.loads((folder / _PRODUCT).read_text())
        for name, size_and_hash in noted["files"].items():
            path = folder / name
            if not path.is_file() or [path.stat().st_size, sha256_file(path)] != size_and_hash:
                raise BadInput(
                    str(path),
                    found="missing" if not path.is_file() else "other bytes than when it was made",
                    expected=f"SHA-256 {size_and_hash[1]}",
                    do=f"Delete {folder}, and run again.",
                )
        self.hits.add(stage)
        product: dict[str, Any] = noted["product"]
        return product

    def make(
        self, stage: str, key: str, build: Callable[[Path], Mapping[str, Any]], *, hashed: Callable[[str], bool] = lambda name: True
    ) -> dict[str, Any]:
        """The product under `key`, built by `build(partial_folder)` when there is none.

        `build` finds in its folder what an interrupted run left, and returns the product as JSON values with
        paths relative to the folder. Files for which `hashed(name)` is true are hashed, and checked on a hit.
        """
        with locked(self.root / stage / f"{key}.lock"):
            found = self.find(stage, key)
            if found is not None:
                return found
            folder = self.folder(stage, key)
            partial = folder.with_name(folder.name + ".partial")
            partial.mkdir(parents=True, exist_ok=True)
            for left in partial.rglob(f".*{_UNFINISHED}"):
                left.unlink()  # a kill in the middle of `write_atomic`: nobody else would, and it would go into the product
            product = dict(build(partial))
            names = sorted(str(p.relative_to(partial)) for p in partial.rglob("*") if p.is_file())
            files = {n: [(partial / n).stat().st_size, sha256_file(partial / n)] for n in names if hashed(n)}
            write_atomic(partial / _PRODUCT, json.dumps({"product": product, "files": files}, indent=1))
            if folder.exists():
                shutil.rmtree(folder)
            partial.rename(folder)
            return product
