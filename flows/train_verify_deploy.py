"""The flow `train-verify-deploy`: every stage in its order, each a Prefect task with a run of its own in MLflow."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from prefect import flow
from prefect.events import emit_event
from prefect.runtime import flow_run
from pydantic import BaseModel, ConfigDict, Field, model_validator

from flows.artifacts import show
from flows.kept import TAKE_OVER
from flows.outcome import UNCHANGED, RunReport, StageName
from flows.pipeline import run_pipeline
from flows.progress import PlainLines, last_report, watcher
from tasks.config import Config, load
from tasks.verdict import DraftproofError, Outcome

_PROJECT = Path(__file__).resolve().parent.parent


class Parameters(BaseModel):
    """What to run: a config file, with overrides, or a whole configuration."""

    model_config = ConfigDict(extra="forbid")

    config_file: str | None = Field(default=None, description="YAML file; a relative path is relative to the project's folder.")
    overrides: list[str] = Field(default=[], description="`section.key=value`, applied to the config file.")
    config: Config | None = Field(default=None, description="A whole configuration, instead of a file.")
    refresh: list[StageName] = Field(default=[], description="Stages that are done again even if their product is in the cache.")
    only_if_changed: bool = Field(
        default=False,
        description="Run only if data, target or configuration changed, or acceptance fell, since the last drafter was measured.",
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.config_file is None) == (self.config is None):
            raise ValueError("give either config_file or config")
        if self.config is not None and self.overrides:
            raise ValueError("overrides need a config_file")
        return self

    def resolve(self) -> Config:
        """The configuration. Raises BadInput."""
        if self.config is not None:
            return self.config
        return load(_PROJECT / Path(str(self.config_file)).expanduser(), self.overrides)


def _tell(report: RunReport) -> None:
    """Events that automations can wait for: `drafter.promoted` or `drafter.rejected`, and `drafter.not-serving`."""
    resource = {"prefect.resource.id": f"draftproof.run.{report.mlflow_run_id}", "prefect.resource.name": str(report.drafter)}
    emit_event(
        event="drafter.rejected" if report.exit_status else "drafter.promoted",
        resource=resource,
        payload={"verdict": report.verdict, "kind": report.kind, "message": report.message, "metrics": report.metrics},
    )
    for check in report.checks:
        if check.name == TAKE_OVER and check.verdict is not Outcome.PASS:
            emit_event(event="drafter.not-serving", resource=resource, payload={"message": check.message})


@flow(name="train-verify-deploy", persist_result=False)
def train_verify_deploy(parameters: Parameters) -> Any:
    """Train a drafter, prove it, serve it, measure it, and promote it if it is faster; the state says how it ended."""
    listener = watcher.get() or PlainLines()
    try:
        report = run_pipeline(
            parameters.resolve(),
            refresh=parameters.refresh,
            watcher=listener,
            flow_run_id=str(flow_run.get_id()),
            only_if_changed=parameters.only_if_changed,
        )
    except DraftproofError as error:
        report = RunReport.of_error(error, "ledger")
    last_report.set(report)
    if report.drafter is not None:
        _tell(report)
    show(report, markdown=report.message if report.verdict == UNCHANGED else None)
    return report.state()
