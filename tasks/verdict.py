"""Outcomes: what a check found, what the run concludes, and which exit status that means.

A broken link of the proof is a `Verdict`; bad input and the machine's trouble are exceptions, because
nothing was proved or disproved by them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field

from tasks.addresses import told


class Outcome(StrEnum):
    PASS = "PASS"
    WARN = "WARN"
    FAIL = "FAIL"
    INVALID = "INVALID"

    @property
    def exit_status(self) -> int:
        """0 for PASS and WARN, 1 for FAIL and INVALID (`design.md`, table of outcomes)."""
        return 0 if self in (Outcome.PASS, Outcome.WARN) else 1


# Which outcome decides when several checks disagree: the later in this list.
_SEVERITY = [Outcome.PASS, Outcome.WARN, Outcome.INVALID, Outcome.FAIL]


class Check(BaseModel):
    """One comparison that was made, with the numbers that decided it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    verdict: Outcome
    message: str = Field(description="What was compared, the two numbers, and what to do if it is not PASS.")
    kind: str | None = Field(default=None, description="Slug of the kind of fault; null on PASS.")
    stage: str | None = Field(default=None, description="The stage that made it, once a verdict was drawn from it.")
    numbers: dict[str, Any] = Field(default_factory=dict)


class Verdict(BaseModel):
    """What a stage or a run concludes. `checks` holds every check that was made."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    verdict: Outcome
    kind: str | None = None
    stage: str
    message: str
    evidence: dict[str, Any] = Field(default_factory=dict)
    hypothesis: str | None = Field(default=None, description="The mis-wiring that restores the numbers.")
    checks: list[Check] = Field(default_factory=list)

    @classmethod
    def of(
        cls,
        stage: str,
        checks: Iterable[Check],
        *,
        passed: str,
        hypothesis: str | None = None,
        evidence: Mapping[str, Any] | None = None,
    ) -> Self:
        """The verdict of the worst check; the first one of that severity names kind, stage and message.

        `stage` draws the verdict, and made the checks that no earlier stage's verdict holds.

        Raises ValueError without checks: a stage that compared nothing has proved nothing.
        """
        made = [check if check.stage else check.model_copy(update={"stage": stage}) for check in checks]
        if not made:
            raise ValueError(f"stage {stage}: a verdict needs at least one check")
        worst = max(made, key=lambda check: _SEVERITY.index(check.verdict))
        healthy = worst.verdict is Outcome.PASS
        return cls(
            verdict=worst.verdict,
            kind=worst.kind,
            stage=stage if healthy else worst.stage or stage,
            message=passed if healthy else worst.message,
            evidence={**(worst.numbers if not healthy else {}), **(evidence or {})},
            hypothesis=hypothesis or (None if healthy else worst.numbers.get("hypothesis")),
            checks=made,
        )

    def also(self, checks: Sequence[Check]) -> Self:
        """With more checks; it says something else only if one of them is worse than what it was drawn from."""
        if not checks:
            return self
        made = [*self.checks, *checks]
        drawn = self.of(self.stage, made, passed=self.message)
        return self.model_copy(update={"checks": made}) if drawn.verdict is self.verdict else drawn


class DraftproofError(Exception):
    """An error with an exit status; its text is meant for a person and is printed without a traceback.

    A password in an address, MLFLOW_TRACKING_URI's for example, is never told: the text goes to logs and to MLflow.
    """

    exit_status = 3

    def __init__(self, message: str = "") -> None:
        super().__init__(told(message))


class BadInput(DraftproofError):
    """Input or configuration that cannot work, found before work is spent (exit status 2).

    Args:
        where: the file or key that is wrong.
        found: what stands there.
        expected: what would be right.
        do: what to do about it.
    """

    exit_status = 2

    def __init__(self, where: str, *, found: object, expected: str, do: str) -> None:
        super().__init__(f"{where}: found {found}; expected {expected}. {do}")
        self.where, self.found, self.expected, self.do = where, found, expected, do


class MachineTrouble(DraftproofError):
    """The machine's fault: no port, no memory, a server that died (exit status 3)."""

    exit_status = 3


class ProofFailed(DraftproofError):
    """A link of the proof is broken; carries the verdict (exit status 1)."""

    exit_status = 1

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(f"{verdict.verdict} [{verdict.kind}] in {verdict.stage}: {verdict.message}")
        self.verdict = verdict
