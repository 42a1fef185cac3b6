"""The experiment of one target."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Self

from tasks.ledger import owner
from tasks.ledger.runs import Run
from tasks.ledger.store import artifact_root, connect, pages, tracking_uri, usable
from tasks.store import home, locked
from tasks.verdict import BadInput, MachineTrouble

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment
    from mlflow.entities import Run as MlflowRun


# Else MLflow's pages (3.17.2) lay it out for prompts and traces, and call a run an evaluation.
_TRAINING = {"mlflow.experimentKind": "custom_model_development"}


class Ledger:
    """`draftproof/<target>`: a parent run per pipeline run, a child run per stage."""

    def __init__(self, client: MlflowClient, uri: str, experiment: str) -> None:
        self.client, self.uri, self.experiment = client, uri, experiment

    @classmethod
    def open(cls, target: str) -> Self:
        """See `tasks.ledger.open_ledger`."""
        uri, client = tracking_uri(), connect()
        with locked(home() / "mlflow.lock"), usable(uri):
            ledger = cls(client, uri, _experiment(client, uri, f"draftproof/{target}"))
            ledger.close_stale()
        return ledger

    def run(self, name: str, tags: Mapping[str, str] | None = None) -> Run:
        """A pipeline run, to be entered by `with`."""
        return Run.new(self.client, self.uri, self.experiment, name=name, tags=tags or {})

    def reopened(self, tag: str, value: str) -> Run | None:
        """The newest run that carries this tag, to be entered again by `with`; None without one."""
        found = self.client.search_runs([self.experiment], f"tags.`{tag}` = '{value}'", max_results=1)
        return Run(self.client, self.uri, self.experiment, found[0].info.run_id) if found else None

    def opened(self, run_id: str) -> Run:
        """A run that another process has open: it is written to, and not to be closed here. Raises MachineTrouble without one."""
        from mlflow.exceptions import MlflowException

        try:
            self.client.get_run(run_id)
        except MlflowException as error:
            reason = str(error).strip().splitlines()[0]
            raise MachineTrouble(
                f"MLflow store {self.uri} has no run {run_id} ({reason}): set MLFLOW_TRACKING_URI here to what it is where the run began."
            ) from error
        return Run(self.client, self.uri, self.experiment, run_id)

    def close_stale(self) -> list[str]:
        """Close as KILLED the runs that dead processes of this machine left RUNNING; their ids."""
        stale = [run.info.run_id for run in self.search("attributes.status = 'RUNNING'") if owner.is_dead(run.data.tags)]
        for run_id in stale:
            self.client.set_terminated(run_id, "KILLED")
        return stale

    def usable(self) -> AbstractContextManager[None]:
        """Inside of it, MLflow's errors become MachineTrouble."""
        return usable(self.uri)

    def search(self, query: str) -> list[MlflowRun]:
        """Every run that fits, the newest first."""
        return list(pages(self.client.search_runs, experiment_ids=[self.experiment], filter_string=query))


def _experiment(client: MlflowClient, uri: str, name: str) -> str:
    """The id of the experiment, made if there is none."""
    existing: Experiment | None = client.get_experiment_by_name(name)
    if existing is not None and existing.lifecycle_stage == "deleted":
        raise BadInput(
            f"MLflow experiment {name}",
            found=f"deleted (id {existing.experiment_id})",
            expected="an active experiment",
            do=f"mlflow experiments restore --experiment-id {existing.experiment_id}",
        )
    if existing is not None:
        return str(existing.experiment_id)
    root = artifact_root(uri)
    location = str(root / name.replace("/", "-")) if root else None
    return str(client.create_experiment(name, artifact_location=location, tags=_TRAINING))
