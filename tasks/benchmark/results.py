"""What goes into the benchmark and what comes out, as typed records. Counts first, ratios derived from them."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from tasks.statistics import Interval
from tasks.verdict import Check

ServerName = Literal["plain", "speculative"]
Phase = Literal["warm-up", "first-token", "explore", "final"]


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Prediction(_Record):
    """What decoding with the standalone drafter predicts at one draft length, per prompt (in the prompts' order)."""

    rounds: list[int] = Field(description="Verify rounds of each prompt.")
    right: list[int] = Field(description="Right drafts of each prompt.")

    @property
    def accept_length(self) -> float:
        """1 + right drafts / verify rounds over all prompts."""
        return accept_length(sum(self.right), sum(self.rounds))


class Candidate(_Record):
    """One draft length: predicted, and measured or ruled out."""

    steps: int
    predicted_accept_length: float
    predicted_speedup: Interval = Field(description="By the cost model, before this draft length was measured; one standard deviation.")
    round_cost: Interval | None = Field(
        default=None, description="Measured seconds of a round / seconds of a plain step; null = not measured."
    )
    measured_speedup: Interval | None = Field(default=None, description="Over the exploring pairs.")
    ruled_out: str | None = Field(default=None, description="Why it was not measured, with the numbers.")


class CachedChoice(_Record):
    """The draft length that an earlier run chose for the same inputs, and what it had explored."""

    steps: int
    candidates: list[Candidate]


class Row(_Record):
    """One request, as measured: a line of the raw table."""

    server: ServerName
    steps: int = Field(description="Draft steps of the speculative server of this pair.")
    phase: Phase
    repeat: int
    group: int = Field(description="Requests of one group are sent at the same time; a pair is one group on both servers.")
    prompt: int = Field(description="Index into the benchmark's prompts.")
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    verify_rounds: int = 0
    right_drafts: int = 0
    histogram: list[int] = []
    seconds: float = 0.0
    tokens: list[int] = Field(default=[], description="Output token ids.")
    error: str | None = Field(default=None, description="Why there is no answer; the counts are 0 then.")


class Benchmark(_Record):
    """The benchmark's result; `checks` say what it means, and whether it means anything (INVALID)."""

    steps: int = Field(description="The chosen draft length.")
    candidates: list[Candidate]
    concurrency: int
    baseline_tok_s: float = Field(description="Output tokens per second of the plain server, over the final pairs.")
    spec_tok_s: float
    baseline_tpot: float = Field(description="Seconds per output token after the first.")
    spec_tpot: float
    speedup: Interval = Field(description="Plain time / speculative time over the final pairs.")
    noise: Interval = Field(description="The plain server against itself, over its own repeats.")
    verify_rounds: int
    right_drafts: int
    predicted_accept_length: float
    identical: int = Field(description="Answers that are the plain server's text, exploring ones included.")
    compared: int
    failures: int
    checks: list[Check]
    rows: list[Row]

    @property
    def accept_length(self) -> float:
        """1 + right drafts / verify rounds, as served."""
        return accept_length(self.right_drafts, self.verify_rounds)

    @property
    def served_difference(self) -> float:
        """Served acceptance relative to the predicted one, minus 1."""
        return self.accept_length / self.predicted_accept_length - 1

    @property
    def choice(self) -> CachedChoice:
        """What a later run with the same inputs may start from."""
        return CachedChoice(steps=self.steps, candidates=self.candidates)


def accept_length(right_drafts: int, verify_rounds: int) -> float:
    """1 + right drafts / verify rounds (`design.md`); 1 where no round was made."""
    return 1 + right_drafts / verify_rounds if verify_rounds else 1.0
