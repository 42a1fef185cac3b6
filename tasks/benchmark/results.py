"""What goes into the benchmark and what comes out, as typed records. Counts first, ratios derived from them."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from tasks.benchmark.setting import Setting
from tasks.statistics import Interval
from tasks.verdict import Check

ServerName = Literal["plain", "speculative", "champion"]
Phase = Literal["warm-up", "explore", "final", "champion"]
"""`champion`: its requests with the plain server alone, where memory holds no third server; else they are among the final ones."""


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


class Explored(_Record):
    """One candidate at one concurrency: what was predicted before it was measured there, and what was measured."""

    concurrency: int
    predicted_speedup: Interval = Field(description="Predicted acceptance over the cost model's round; one standard deviation.")
    round_cost: Interval | None = Field(
        default=None, description="Measured seconds of a round / seconds of a plain step; null = not measured."
    )
    measured_speedup: Interval | None = Field(default=None, description="Over the exploring pairs.")


class Candidate(_Record):
    """One setting: predicted, and measured or ruled out."""

    setting: Setting
    predicted_accept_length: float
    explored: list[Explored] = Field(description="At each concurrency, the deciding one first.")
    ruled_out: str | None = Field(default=None, description="Why no server was started with it, with the numbers.")


class CachedChoice(_Record):
    """The setting that an earlier run chose for the same inputs at each concurrency, and what it had explored."""

    settings: dict[int, Setting] = Field(description="Concurrency to setting.")
    candidates: list[Candidate] = []


class Row(_Record):
    """One request, as measured: a line of the raw table."""

    server: ServerName
    again: bool = Field(default=False, description="Asked of the plain server a second time in the same pair, which tells its noise.")
    setting: Setting = Field(description="Of the candidate's speculative server of this pair; the champion's own is in `Versus`.")
    concurrency: int
    phase: Phase
    repeat: int
    group: int = Field(description="Requests of one group are sent at the same time; a pair is one group on both servers.")
    prompt: int = Field(description="Index into the benchmark's prompts.")
    category: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    verify_rounds: int = 0
    right_drafts: int = 0
    histogram: list[int] = []
    seconds: float = 0.0
    first_seconds: float = Field(default=0.0, description="From sending to the first token.")
    first_tokens: int = Field(default=0, description="Tokens that came with the first one.")
    tokens: list[int] = Field(default=[], description="Output token ids.")
    error: str | None = Field(default=None, description="Why there is no answer; the counts are 0 then.")


class Percentiles(_Record):
    """Of a time in seconds over requests."""

    mean: float
    p50: float
    p90: float
    p99: float


class Figures(_Record):
    """One server over the final pairs at one concurrency; the sums that the ratios are made of come first."""

    requests: int
    output_tokens: int
    seconds: float = Field(description="During which requests ran.")
    output_tok_s: float
    requests_s: float
    ttft: Percentiles = Field(description="Time to the first token.")
    tpot: float = Field(description="Seconds per output token after the first: sum of seconds over sum of tokens.")
    tpot_by_request: Percentiles
    end_to_end: Percentiles


class Acceptance(_Record):
    """Served acceptance from per-request counts."""

    verify_rounds: int
    right_drafts: int
    histogram: list[int] = Field(description="Entry j: verify rounds with j right drafts.")

    @property
    def accept_length(self) -> float:
        """1 + right drafts / verify rounds."""
        return accept_length(self.right_drafts, self.verify_rounds)


class CategoryFigures(_Record):
    """The final pairs of one category of prompts, at the deciding concurrency."""

    prompts: int
    baseline_tpot: float
    spec_tpot: float
    speedup: Interval = Field(description="Plain / speculative seconds of its requests.")
    acceptance: Acceptance


class Versus(_Record):
    """The candidate against the reigning champion, at the deciding concurrency."""

    version: str = Field(description="The champion's in the registry.")
    setting: Setting = Field(description="The champion's, as it was promoted.")
    figures: Figures = Field(description="The champion's, over the same prompts and repeats as the candidate's.")
    acceptance: Acceptance
    candidate_tok_s: float
    over: Interval = Field(description="Champion time / candidate time of the same groups and repeats: above 1 the candidate is faster.")
    side_by_side: bool = Field(
        description="All three servers ran at once. Else the two took turns, and what the plain server took in each turn is divided out."
    )


class Point(_Record):
    """The final measurement at one concurrency."""

    concurrency: int
    setting: Setting = Field(description="The best one at this concurrency.")
    plain: Figures
    speculative: Figures
    speedup: Interval = Field(description="Plain time / speculative time over the pairs; for prompts like these: they are resampled.")
    timing: Interval = Field(description="The same ratio, for just these prompts: what timing noise alone leaves open.")
    noise: Interval = Field(description="The plain server against itself: asked twice in each pair.")
    acceptance: Acceptance
    predicted_accept_length: float | None = Field(description="By the standalone drafter; null = not predicted.")
    identical: int = Field(description="Answers that are the plain server's text, exploring ones included.")
    compared: int
    checks: list[Check]


class Benchmark(_Record):
    """The benchmark's result; `checks` say what it means, and whether it means anything (INVALID)."""

    points: list[Point] = Field(description="At each concurrency, the deciding one first.")
    candidates: list[Candidate]
    categories: dict[str, CategoryFigures]
    failures: int
    versus: Versus | None = Field(default=None, description="Null where there was no champion to measure.")
    checks: list[Check]
    rows: list[Row]

    @property
    def point(self) -> Point:
        """The one that decides."""
        return self.points[0]

    @property
    def setting(self) -> Setting:
        return self.point.setting

    @property
    def speedup(self) -> Interval:
        return self.point.speedup

    @property
    def choice(self) -> CachedChoice:
        """What a later run with the same inputs may start from, and what a deployment is told."""
        return CachedChoice(settings={point.concurrency: point.setting for point in self.points}, candidates=self.candidates)

    @property
    def last_answers(self) -> list[Row]:
        """Of the chosen setting, the speculative server's answer to each prompt in the first of the final repeats."""
        return [
            row
            for row in self.rows
            if row.phase == "final" and row.server == "speculative" and row.setting == self.setting and row.repeat == 0 and not row.error
        ]

    @property
    def stops_paying(self) -> int | None:
        """The least measured concurrency at which speculation is not shown to be faster; None = it always is."""
        return min((point.concurrency for point in self.points if point.speedup.low <= 1), default=None)


def accept_length(right_drafts: int, verify_rounds: int) -> float:
    """1 + right drafts / verify rounds (`design.md`); 1 where no round was made."""
    return 1 + right_drafts / verify_rounds if verify_rounds else 1.0
