"""A stage's run told on its page in MLflow: what the stage is for, how it ended, its figures, and where the rest is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tasks.verdict import Outcome

if TYPE_CHECKING:
    from tasks.ledger import Run
    from tasks.verdict import Verdict

_PURPOSE = {
    "environment": "What the interpreters, the devices and the disk of this run have, against what its stages need.",
    "target": "The target's folder, prepared and fingerprinted.",
    "data": "Conversations that the target itself answered, split into training and held out.",
    "capture": "The target's features at the declared boundaries, some of them extracted again by a second path.",
    "train": "The drafter, with the trainer's own logits on held-out conversations; loss and accuracy are the curves of this run.",
    "export": "The drafter as SGLang reads it, with its wiring record and golden probes.",
    "verify": "The exported drafter decoded alone: does it compute what the trainer computed, and what acceptance will it have?",
    "deploy": "A real server with the drafter, asked the golden probes: does it feed and answer what the standalone drafter does?",
    "benchmark": "The plain against the speculative server, in pairs: is what is served what was proved, and is it faster?",
    "promote": "The gates, and the drafter's version in the registry.",
}


@dataclass
class StageStory:
    """What a stage has said of itself so far."""

    stage: str
    figures: dict[str, float] = field(default_factory=dict)
    artifacts: list[str] = field(default_factory=list)
    verdict: Verdict | None = None
    cached: bool = False

    @contextmanager
    def told_in(self, run: Run) -> Iterator[None]:
        """Written when the stage ends, also by an error; a run that is interrupted keeps what it began with."""
        run.describe(_PURPOSE.get(self.stage, ""))
        try:
            yield
        except Exception as error:
            run.describe(self.markdown(str(error)))
            raise
        run.describe(self.markdown())

    def markdown(self, error: str = "") -> str:
        """`error`: what ended the stage before it was through."""
        parts = [f"{_PURPOSE.get(self.stage, '')}", self._outcome(error), self._table(), self._notable()]
        if self.artifacts:
            parts.append("In the artifacts: " + ", ".join(f"`{name}`" for name in self.artifacts))
        return "\n\n".join(part for part in parts if part)

    def _outcome(self, error: str) -> str:
        if self.verdict is not None:
            kind = f" `{self.verdict.kind}`" if self.verdict.kind else ""
            return f"**{self.verdict.verdict}**{kind} {self.verdict.message}"
        if error:
            return f"**Ended by an error**: {error}"
        return "**Found in the cache**: nothing that it depends on has changed." if self.cached else "**Done.**"

    def _table(self) -> str:
        rows = [f"| {name} | {_number(value)} |" for name, value in self.figures.items()]
        return "\n".join(["| | |", "|---|---:|", *rows]) if rows else ""

    def _notable(self) -> str:
        checks = self.verdict.checks if self.verdict else []
        return "\n".join(f"- **{check.verdict}** {check.name}: {check.message}" for check in checks if check.verdict is not Outcome.PASS)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) else f"{value:.4g}"
