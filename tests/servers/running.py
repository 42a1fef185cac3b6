"""A real `draftproof run` in a process of its own: what it prints is read as it comes, and it is hit in the middle of a stage."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from tasks.deploy.records import ServerRecord
from tasks.processes import Process, family
from tests.processes import processes_of
from tests.tiny import pipeline_config

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

PROJECT = Path(__file__).resolve().parents[2]
TARGET = "tiny-grammar"


@dataclass
class Place:
    """A home with a configuration that takes seconds, and what its runs have come to so far."""

    folder: Path
    prefect: str
    """Prefect's API for all of its runs: one of their own would cost each of them many seconds, and is tested in tests/flows."""
    finished: set[str] = field(default_factory=set)
    """Stages that some run got through, so that the next one must find them in the cache."""
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    """Of every run so far."""

    @classmethod
    def made(cls, folder: Path, prefect: str) -> Place:
        place = cls(folder, prefect)
        for path in (place.home, place.scratch):
            path.mkdir()
        place.config.write_text(yaml.safe_dump(pipeline_config(folder)), encoding="utf-8")
        return place

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def scratch(self) -> Path:
        """TMPDIR of everything that is started here."""
        return self.folder / "tmp"

    @property
    def config(self) -> Path:
        return self.folder / "tiny.yaml"

    @property
    def environment(self) -> dict[str, str]:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "MLFLOW_"))}
        return {**inherited, "DRAFTPROOF_HOME": str(self.home), "TMPDIR": str(self.scratch)}

    def servers(self) -> list[ServerRecord]:
        """On record, whether they live or not."""
        return [ServerRecord.model_validate_json(path.read_text()) for path in (self.home / "servers").glob("*.json")]

    def ledger(self) -> MlflowClient:
        from mlflow import MlflowClient

        return MlflowClient(f"sqlite:///{self.home}/mlflow.db")

    def runs(self) -> list[list[Run]]:
        """Each pipeline run with the runs of its stages behind it, the newest first."""
        client = self.ledger()
        experiment = client.get_experiment_by_name(f"draftproof/{TARGET}")
        found = client.search_runs([experiment.experiment_id], order_by=["attributes.start_time DESC"])
        parents = [run for run in found if "mlflow.parentRunId" not in run.data.tags]
        return [[parent, *(run for run in found if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id)] for parent in parents]


class Flow:
    """One `draftproof run`."""

    def __init__(self, place: Place, *arguments: str) -> None:
        self.place = place
        self.log = place.folder / f"run-{time.monotonic_ns()}.log"
        command = [sys.executable, "-m", "flows.cli", "run", str(place.config), *arguments]
        with self.log.open("wb") as output:
            environment = {**place.environment, "PREFECT_API_URL": place.prefect}
            self.process = subprocess.Popen(command, cwd=PROJECT, env=environment, stdout=output, stderr=output)
        place.processes.append(self.process)

    @property
    def told(self) -> str:
        return self.log.read_text(errors="replace")

    def until(self, there: Callable[[], bool], what: str, seconds: float = 240) -> None:
        """Wait for something that the run does. Looks often, since some stages last a moment."""
        deadline = time.monotonic() + seconds
        while not there():
            assert self.process.poll() is None, f"ended before {what}:\n{self.told[-4000:]}"
            assert time.monotonic() < deadline, f"no {what}:\n{self.told[-4000:]}"
            time.sleep(0.004)

    def until_told(self, words: str, times: int = 1) -> None:
        self.until(lambda: self.told.count(words) >= times, words)

    def until_at_work(self, stage: str) -> None:
        """Until the stage has begun to write, or whatever else it is for, in earnest."""
        self.until_told(f"{stage:<11} begins")
        if stage in AT_WORK:
            self.until_told(AT_WORK[stage])
        elif stage in PARTLY:
            partial = self.place.home / "cache" / stage
            self.until(lambda: any(partial.glob(f"*.partial/{PARTLY[stage]}")), f"part of {stage}'s product")

    def hit(self, number: signal.Signals) -> int:
        """The exit status after the signal; returns when no process of the run is left."""
        everything = family(self.process.pid)
        self.process.send_signal(number)
        status = self.ended()
        gone(self.place, everything)
        return status

    def ended(self, seconds: float = 240) -> int:
        """The exit status; what this run got through is remembered."""
        status = self.process.wait(seconds)
        self.place.finished |= {stage for stage in KEPT if f"{stage:<11} done" in self.told}
        return status

    @property
    def found(self) -> set[str]:
        """Stages that were found in the cache."""
        return {stage for stage in KEPT if f"{stage:<11} found in the cache" in self.told}


# Stages whose products the store keeps, with a part of the product that is there before it is whole.
PARTLY = {"data": "*", "capture": "hidden_states/*.safetensors", "train": "state.safetensors", "export": "*", "verify": ""}
KEPT = list(PARTLY)
# What is said when a server is being asked; with the choice of an earlier run, the benchmark explores nothing.
AT_WORK = {"deploy": "server ready at", "benchmark": "plain steps"}


def gone(place: Place, processes: list[Process], seconds: float = 30) -> None:
    """Wait until none of these is left, nor any other process of the home."""
    deadline = time.monotonic() + seconds
    while (left := [p for p in processes if p.alive]) or processes_of(place.home):
        assert time.monotonic() < deadline, (left, processes_of(place.home))
        time.sleep(0.1)
