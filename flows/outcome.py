"""What came of a run: the JSON of `--json`, the exit status, the Prefect state."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from tasks.addresses import told
from tasks.store import write_atomic
from tasks.verdict import BadInput, Check, DraftproofError, ProofFailed, Verdict

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State

# Stages whose products are kept, and can be asked for anew.
StageName = Literal["target", "data", "capture", "train", "export", "verify", "benchmark"]


UNCHANGED = "UNCHANGED"


class RunReport(BaseModel):
    """Keys are stable: other people's scripts read them (`--json`)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    verdict: str = Field(
        description="PASS, WARN, FAIL or INVALID; ERROR where nothing was proved or disproved; UNCHANGED where nothing had to be."
    )
    kind: str | None = Field(
        description="Slug of the kind of fault, null on PASS; with ERROR `bad-input`, `machine-trouble` or `internal`."
    )
    stage: str
    message: str
    exit_status: int
    evidence: dict[str, Any] = {}
    hypothesis: str | None = None
    checks: list[Check] = []
    drafter: Path | None = Field(default=None, description="Folder of the exported checkpoint.")
    target: Path | None = Field(default=None, description="Folder of the target.")
    mlflow_run_id: str | None = None
    metrics: dict[str, float] = {}

    @classmethod
    def of_verdict(cls, verdict: Verdict, **more: Any) -> Self:
        return cls(**verdict.model_dump(), exit_status=verdict.verdict.exit_status, **more)

    @classmethod
    def of_error(cls, error: DraftproofError, stage: str, **more: Any) -> Self:
        if isinstance(error, ProofFailed):
            return cls.of_verdict(error.verdict, **more)
        kind = "bad-input" if isinstance(error, BadInput) else "machine-trouble"
        return cls(verdict="ERROR", kind=kind, stage=stage, message=str(error), exit_status=error.exit_status, **more)

    @classmethod
    def of_fault(cls, error: Exception) -> Self:
        """A fault of ours, which says nothing about the drafter."""
        return cls(verdict="ERROR", kind="internal", stage="flow", message=told(f"{type(error).__name__}: {error}"), exit_status=3)

    def state(self) -> State[Any]:
        """Completed, Failed or Crashed, by the table of outcomes in `design.md`."""
        from prefect.states import Completed, Crashed, Failed

        made = {0: Completed, 1: Failed, 2: Failed, 3: Crashed}[self.exit_status]
        where = f"{self.verdict}{f' [{self.kind}]' if self.kind else ''} in {self.stage}: "
        return made(message=f"{'' if self.verdict == UNCHANGED else where}{self.message}")


def write_json(path: Path | None, report: RunReport) -> None:
    """The report for `--json`, whole or not at all. Raises BadInput for a place that cannot be written."""
    if path is None:
        return
    try:
        write_atomic(path, report.model_dump_json(indent=1) + "\n")
    except OSError as error:
        raise BadInput(
            "--json", found=f"{path}: {error.strerror}", expected="a file that can be written", do="Name another file."
        ) from error
