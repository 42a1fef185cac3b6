"""What passes between the machine that trains and the one that serves: by the artifact store, and known by its SHA-256.

An order goes there, a result comes back, each a JSON file below `handover/` of the pipeline's run in MLflow. Their hashes
go another way: the order's as a parameter of the flow run, the result's as a tag of the run.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from tasks.addresses import told
from tasks.benchmark import Benchmark, Prediction, Setting
from tasks.config import Config
from tasks.environment import EnvironmentRecord
from tasks.products import drafter_files
from tasks.store import Store, sha256_file, sha256_json
from tasks.verdict import BadInput, Check, DraftproofError, MachineTrouble, ProofFailed, Verdict

if TYPE_CHECKING:
    from tasks.ledger import Run

Job = Literal["environment", "deploy", "benchmark", "take-over"]
_FOLDER = "handover"
_DRAFTER = f"{_FOLDER}/drafter"
Model = TypeVar("Model", bound=BaseModel)


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Fault(_Record):
    """What ended a job, to be raised again by whoever asked for it."""

    verdict: Verdict | None = None
    bad_input: dict[str, str] | None = None
    trouble: str | None = None

    @classmethod
    def of(cls, error: DraftproofError) -> Self:
        if isinstance(error, ProofFailed):
            return cls(verdict=error.verdict)
        if isinstance(error, BadInput):
            return cls(bad_input={"where": error.where, "found": told(str(error.found)), "expected": error.expected, "do": error.do})
        return cls(trouble=str(error))

    def error(self, pool: str) -> DraftproofError:
        """A broken proof is the same wherever it broke; input and trouble are that of the other machine."""
        if self.verdict is not None:
            return ProofFailed(self.verdict)
        if self.bad_input is not None:
            given: dict[str, Any] = {**self.bad_input, "where": f"{self.bad_input['where']} (in work pool {pool!r})"}
            return BadInput(given.pop("where"), **given)
        return MachineTrouble(f"in work pool {pool!r}: {self.trouble}")


class Order(_Record):
    """One job for the machine that serves, with all that it needs but the drafter's files."""

    job: Job
    config: Config
    holds_machine: str
    """Host and home of whoever asks and has `tasks.store.machine` meanwhile: on the same machine it is not taken twice."""
    refresh: list[str] = []
    target_sha256: str | None = None
    drafter: dict[str, str] = {}
    """File to SHA-256."""
    drafter_sha256: str | None = None
    prompts: list[list[int]] = []
    categories: list[str] | None = None
    predicted: list[tuple[Setting, Prediction]] = []
    model: str | None = None
    """Whose kept server is replaced."""


class Result(_Record):
    """What came of it. With a `fault` the rest is what was known until then."""

    record: EnvironmentRecord | None = None
    target_sha256: str | None = None
    found: list[Check] = []
    contract: list[Check] = []
    """Of the servers that were started."""
    benchmark: Benchmark | None = None
    headlines: dict[str, float] = {}
    fault: Fault | None = None


def send(run: Run, name: str, content: BaseModel) -> str:
    """Its SHA-256. A hash that cannot be forged by whoever can write artifacts has to travel another way."""
    text = content.model_dump_json()
    run.text(f"{_FOLDER}/{name}.json", text)
    return hashlib.sha256(text.encode()).hexdigest()


def receive(run: Run, name: str, sha256: str, model: type[Model]) -> Model:
    """Raises MachineTrouble where it is not there, or not what was sent."""
    with TemporaryDirectory() as folder:
        path = run.fetch(f"{_FOLDER}/{name}.json", Path(folder))
        _compare({path.name: sha256}, {path.name: sha256_file(path)})
        try:
            return model.model_validate_json(path.read_text(encoding="utf-8"))
        except ValidationError as error:
            first = error.errors()[0]
            raise MachineTrouble(
                f"{_FOLDER}/{name}.json: {first['loc']}: {first['msg']}. Do both sides run the same commit, with the same pydantic?"
            ) from error


def send_drafter(run: Run, folder: Path) -> dict[str, str]:
    """File to SHA-256 of what was uploaded."""
    files = _hashes(folder)
    for name in files:
        place = str(Path(name).parent)
        run.file(folder / name, _DRAFTER if place == "." else f"{_DRAFTER}/{place}")
    return files


def receive_drafter(run: Run, files: dict[str, str], store: Store) -> Path:
    """The folder, fetched once per content. Raises MachineTrouble where it does not hold these files, with these hashes, and no others."""

    def fetch(partial: Path) -> dict[str, str]:
        shutil.rmtree(partial)  # what an earlier try left would be counted in
        partial.mkdir()
        folder = run.fetch(_DRAFTER, partial)
        _compare(files, _hashes(folder))
        return {"folder": str(folder.relative_to(partial))}

    key = sha256_json(files)[:16]
    return store.folder("arrived", key) / str(store.make("arrived", key, fetch)["folder"])


def _hashes(folder: Path) -> dict[str, str]:
    return {name: sha256_file(folder / name) for name in drafter_files(folder)}


def _compare(sent: dict[str, str], arrived: dict[str, str]) -> None:
    other = {name: (sent.get(name), arrived.get(name)) for name in sorted({*sent, *arrived}) if sent.get(name) != arrived.get(name)}
    if other:
        each = "; ".join(f"{name}: sent {was or 'no such file'}, arrived {now or 'nothing'}" for name, (was, now) in other.items())
        raise MachineTrouble(f"what arrived by MLflow's artifact store is not what was sent, by SHA-256: {each}. Who else writes there?")
