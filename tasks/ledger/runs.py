"""One MLflow run, by its id: nothing here depends on MLflow's thread-local active run."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tasks.ledger import owner
from tasks.ledger.store import usable
from tasks.verdict import Verdict

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.utils.async_logging.run_operations import RunOperations

_BATCH = 1000  # MLflow's limit of metrics per call (mlflow 3.17.2, utils/validation.py)
_PARAM_CHARS = 6000  # its limit of one parameter's value
_NOTE = "mlflow.note.content"
_PARENT = "mlflow.parentRunId"


class Run:
    """A run that is open inside of its `with` statement, and closed by how that is left.

    FINISHED; FAILED after an exception or `fail()`; KILLED after a signal (KeyboardInterrupt, SystemExit, Prefect's
    TerminationSignal: exceptions that are no `Exception`).
    """

    def __init__(self, client: MlflowClient, uri: str, experiment: str, run_id: str) -> None:
        self.id = run_id
        self._client, self._uri, self._experiment = client, uri, experiment
        self._failed = False
        self._pending: list[RunOperations] = []
        self._children: dict[str, Run] = {}

    @classmethod
    def new(cls, client: MlflowClient, uri: str, experiment: str, *, name: str, tags: Mapping[str, str], parent: str | None = None) -> Self:
        """A run that this process owns."""
        with usable(uri):
            given = {**tags, **owner.tags(), **({_PARENT: parent} if parent else {})}
            return cls(client, uri, experiment, client.create_run(experiment, run_name=name, tags=given).info.run_id)

    def child(self, name: str) -> Run:
        """The run of one stage; a stage that is tried again goes on in the run it had."""
        if name not in self._children:
            self._children[name] = Run.new(self._client, self._uri, self._experiment, name=name, tags={}, parent=self.id)
        return self._children[name]

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """A point of a curve, written in the background. What is not finite is left out and named in a tag."""
        refused = {name: value for name, value in values.items() if not math.isfinite(value)}
        if refused:
            self.tag({"draftproof.refused_metrics": f"{refused} at step {step}"})
        entities = self._metrics({name: value for name, value in values.items() if name not in refused}, step)
        if entities:
            self._pending.append(self._client.log_batch(self.id, metrics=entities, synchronous=False))

    def log(self, values: Mapping[str, float]) -> None:
        """Figures that are final. Raises ValueError, naming them, when some are not finite: infinity reads back as 1.797e308."""
        refused = [f"{name} = {value}" for name, value in values.items() if not math.isfinite(value)]
        if refused:
            raise ValueError(f"not finite, and not logged: {', '.join(refused)}")
        entities = self._metrics(values, 0)
        with usable(self._uri):
            for start in range(0, len(entities), _BATCH):
                self._client.log_batch(self.id, metrics=entities[start : start + _BATCH])

    def params(self, values: Mapping[str, Any]) -> None:
        """Nested values get dotted names."""
        from mlflow.entities import Param

        entities = [Param(name, str(value)[:_PARAM_CHARS]) for name, value in _flat(values)]
        with usable(self._uri):
            for start in range(0, len(entities), 100):
                self._client.log_batch(self.id, params=entities[start : start + 100])

    def tag(self, values: Mapping[str, str]) -> None:
        from mlflow.entities import RunTag

        with usable(self._uri):
            self._client.log_batch(self.id, tags=[RunTag(name, value) for name, value in values.items()])

    def rename(self, name: str) -> None:
        """A run is named by its time while it goes on, and by how it ended too when that is known."""
        with usable(self._uri):
            self._client.update_run(self.id, name=name)

    def describe(self, markdown: str) -> None:
        """What the run's page in MLflow says first."""
        self.tag({_NOTE: markdown})

    def text(self, name: str, content: str) -> None:
        """A small artifact."""
        with usable(self._uri):
            self._client.log_text(self.id, content, name)

    def file(self, path: Path, folder: str | None = None) -> None:
        """An artifact that is worth its upload; for large ones use `refer`."""
        with usable(self._uri):
            self._client.log_artifact(self.id, str(path), folder)

    def fetch(self, name: str, into: Path) -> Path:
        """The file or folder that lies in the artifacts under this name, copied to below `into`."""
        with usable(self._uri):
            return Path(self._client.download_artifacts(self.id, name, str(into)))

    def tags(self) -> dict[str, str]:
        """As they are now: another process may have written some."""
        with usable(self._uri):
            return dict(self._client.get_run(self.id).data.tags)

    def refer(self, files: Mapping[str, tuple[Path, str]]) -> None:
        """Large products by path and SHA-256, as `products.json`."""
        self.text("products.json", json.dumps({n: {"path": str(p), "sha256": sha} for n, (p, sha) in files.items()}, indent=1))

    def verdict(self, verdict: Verdict) -> None:
        """Tag the run with the verdict, keep every check, and mark the run failed if it is no pass."""
        self.tag({"draftproof.verdict": verdict.verdict, "draftproof.kind": verdict.kind or "", "draftproof.stage": verdict.stage})
        self.text("verdict.json", verdict.model_dump_json(indent=1))
        if verdict.verdict.exit_status:
            self.fail()

    def fail(self) -> None:
        """Close as FAILED even without an exception."""
        self._failed = True

    def __enter__(self) -> Self:
        self._failed = False
        with usable(self._uri):
            self._client.update_run(self.id, status="RUNNING")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        killed = kind is not None and not issubclass(kind, Exception)
        status = "KILLED" if killed else "FAILED" if self._failed or kind is not None else "FINISHED"
        with usable(self._uri):
            try:
                for operation in self._pending:
                    operation.wait()
            finally:
                self._pending.clear()
                self._client.set_terminated(self.id, status)

    def _metrics(self, values: Mapping[str, float], step: int) -> Sequence[Any]:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        return [Metric(name, float(value), now, step) for name, value in values.items()]


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
