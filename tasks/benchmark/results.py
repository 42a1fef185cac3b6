"""What goes into the benchmark and what comes out, as typed records. Counts first, ratios derived from them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from tasks.statistics import Interval
from tasks.verdict import Check

Server = Literal["plain", "speculative"]


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Prediction(_Record):
    """What decoding with the standalone drafter predicts at one draft length, per prompt (same order as the prompts)."""

    rounds: list[int] = Field(description="Verify rounds of each prompt.")
    right: list[int] = Field(description="Right drafts of each prompt.")

    @property
    def accept_length(self) -> float:
        return 1 + sum(self.right) / sum(self.rounds)


class CachedChoice(_Record):
    """The draft length that an earlier run chose for the same inputs, and what it had explored."""

    steps: int
    explored: list[Candidate]


class Row(_Record):
    """One request, as measured: a line of the raw table."""

    server: Server
    steps: int | None = Field(description="Draft steps of the server; null on the plain one.")
    phase: Literal["warm-up", "explore", "final"]
    repeat: int
    group: int = Field(description="Requests of one group are sent at the same time; a pair is one group on both servers.")
    prompt: int = Field(description="Index into the benchmark's prompts.")
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    verify_rounds: int = 0
    right_drafts: int = 0
    histogram: list[int] = []
    seconds: float = Field(default=0.0, description="Of this request.")
    group_seconds: float = Field(default=0.0, description="From the first request of the group sent to its last answer.")
    ttft: float | None = None
    tokens: list[int] = Field(default=[], description="Output token ids.")
    error: str | None = Field(default=None, description="Why there is no answer; the counts are 0 then.")


class Candidate(_Record):
    """One draft length: predicted, and measured or ruled out."""

    steps: int
    predicted_accept_length: float
    predicted_speedup: float | None = Field(default=None, description="Of the cost model, when the decision was made; null before it.")
    measured_speedup: Interval | None = Field(default=None, description="Null where it was ruled out without a start.")
    served_accept_length: float | None = None
    seconds_per_round: float | None = None
    ruled_out: str | None = Field(default=None, description="Why it was not measured, with the numbers.")


class Benchmark(_Record):
    """The benchmark's result. `checks` decides whether it says anything (INVALID) and what it says."""

    steps: int = Field(description="The chosen draft length.")
    candidates: list[Candidate]
    concurrency: int
    output_tokens: int
    baseline_tok_s: float = Field(description="Output tokens per second of the plain server, over the final pairs.")
    spec_tok_s: float
    baseline_tpot: float | None = Field(description="Seconds per output token after the first; null where not streamed.")
    spec_tpot: float | None
    speedup: Interval = Field(description="Plain time / speculative time over the final pairs.")
    noise: Interval = Field(description="The plain server against itself, as the speed-up is measured.")
    verify_rounds: int
    right_drafts: int
    predicted_accept_length: float
    identical: int = Field(description="Prompts whose greedy texts were the same on both servers in every repeat.")
    compared: int
    failures: int
    checks: list[Check]
    rows: list[Row]

    @property
    def accept_length(self) -> float:
        """1 + right drafts / verify rounds, served."""
        return 1 + self.right_drafts / self.verify_rounds if self.verify_rounds else 1.0

    @property
    def served_difference(self) -> float:
        """Relative difference of served from predicted acceptance."""
        return self.accept_length / self.predicted_accept_length - 1


def speculative(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if row.server == "speculative" and row.error is None]
