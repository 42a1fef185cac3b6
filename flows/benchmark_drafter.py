"""The flow `benchmark-drafter`: plain against speculative, for what exists already, as a run of its own in MLflow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect import flow
from prefect.runtime import flow_run
from pydantic import BaseModel, ConfigDict, Field

from flows.artifacts import show
from flows.benchmark import STAGES
from flows.benchmarking import Asked, run_benchmark
from flows.outcome import RunReport
from flows.progress import PlainLines, last_report, watcher
from flows.session import Watched
from tasks.config import load
from tasks.store import machine
from tasks.verdict import DraftproofError

_PROJECT = Path(__file__).resolve().parent.parent


class Parameters(BaseModel):
    """What is measured. A relative path is relative to the project's folder."""

    model_config = ConfigDict(extra="forbid")

    config_file: str = Field(description="YAML file: the target, how servers are started, and what is measured.")
    overrides: list[str] = Field(default=[], description="`section.key=value`, applied to the config file.")
    drafter: str | None = Field(default=None, description="Folder of an EAGLE-3 drafter; null = the champion of the config's target.")
    plain: str | None = Field(default=None, description="Address of a server without speculation that runs already.")
    speculative: str | None = Field(default=None, description="Address of a server with the drafter that runs already.")

    def asked(self) -> Asked:
        """Raises BadInput."""
        config = load(_PROJECT / Path(self.config_file).expanduser(), self.overrides)
        drafter = (_PROJECT / Path(self.drafter).expanduser()).resolve() if self.drafter else None
        return Asked(config, drafter, self.plain, self.speculative)


@flow(name="benchmark-drafter", persist_result=False)
def benchmark_drafter(parameters: Parameters) -> Any:
    """Measure a drafter, or two servers; the state says how it ended, the artifact and MLflow why."""
    try:
        listener = watcher.get() or PlainLines(STAGES)
        asked = parameters.asked()
        with machine(Watched("benchmark", listener).say):
            report = run_benchmark(asked, watcher=listener, flow_run_id=str(flow_run.get_id()))
    except DraftproofError as error:
        report = RunReport.of_error(error, "config")
    last_report.set(report)
    show(report, key="benchmark")
    return report.state()
