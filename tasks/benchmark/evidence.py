"""What the checks look at, and how a check is made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.benchmark.figures import PairOfRows, pairs_of
from tasks.benchmark.results import Prediction, Row
from tasks.benchmark.setting import Setting
from tasks.config import BenchmarkConfig
from tasks.statistics import Interval
from tasks.verdict import Check, Outcome
from tasks.wiring.kinds import Kind


@dataclass(frozen=True)
class Evidence:
    """Everything that a check may look at."""

    config: BenchmarkConfig
    rows: Sequence[Row]
    """Of this concurrency; of every phase and setting."""
    final: Sequence[PairOfRows]
    noise: Interval
    predicted: Prediction | None
    setting: Setting
    concurrency: int
    dtype: str
    served_tolerance: float

    @property
    def measured(self) -> list[Row]:
        """Answered requests of the pairs, exploring ones included."""
        return [row for row in self.rows if row.phase in ("explore", "final") and row.error is None]

    @property
    def served(self) -> list[Row]:
        """Answers of the chosen speculative server in complete final pairs."""
        return [row for pair in self.final if pair.complete for row in pair.speculative]


def answers(rows: Iterable[Row]) -> list[tuple[Row, Row]]:
    """Plain and speculative answer to the same prompt, of every complete pair in any phase."""
    rows = list(rows)
    pairs = [pair for phase in ("explore", "final") for pair in pairs_of(rows, phase) if pair.complete]
    return [answers for pair in pairs for answers in zip(pair.plain, pair.speculative, strict=True)]


def check_of(
    name: str,
    fine: bool,
    *,
    told: str,
    do: str,
    numbers: dict[str, Any],
    otherwise: Outcome = Outcome.INVALID,
    kind: Kind = Kind.INVALID_MEASUREMENT,
) -> Check:
    """A check: what was compared (`told`), what to do if it fails (`do`). By default one whose failure means that nothing was measured."""
    if fine:
        return Check(name=name, verdict=Outcome.PASS, message=told, numbers=numbers)
    return Check(name=name, verdict=otherwise, kind=kind, message=f"{told}: {do}", numbers=numbers)
