"""About how long a run still takes, from what is finished and from the typical share of each stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

# Measured on the demo, on two cores, as shares of the whole. Only their proportions matter once a stage has ended.
SHARES: dict[str, float] = {
    "environment": 0.005,
    "target": 0.03,
    "data": 0.22,
    "capture": 0.03,
    "train": 0.37,
    "export": 0.005,
    "verify": 0.04,
    "deploy": 0.04,
    "benchmark": 0.25,
    "promote": 0.01,
}
_TYPICAL_SECONDS = 20 * 60.0
_ENOUGH = 0.02  # share of a stage that has to be done before its own pace is believed


@dataclass(frozen=True)
class _Phase:
    total: float
    unit: str
    first: float
    """Done already when its clock started."""
    began: float


@dataclass
class Estimate:
    """Fed with the stages' begin, progress and end; every time is in seconds on one clock."""

    stages: Sequence[str] = tuple(SHARES)
    began: dict[str, float] = field(default_factory=dict)
    took: dict[str, float] = field(default_factory=dict)
    cached: set[str] = field(default_factory=set)
    current: str | None = None
    fraction: float = 0.0
    phase: _Phase | None = None

    def begin(self, stage: str, now: float) -> None:
        self.current, self.fraction, self.phase = stage, 0.0, None
        self.began[stage] = now

    def progress(self, done: float, total: float, unit: str, now: float) -> None:
        """A stage may count several things in turn (training steps, then held-out rows): each has a pace of its own."""
        if self.phase is None or (self.phase.total, self.phase.unit) != (total, unit):
            # What the first phase had before it was first heard of began with the stage; a later one begins now.
            start = (0.0, self.began[self.current]) if self.phase is None and self.current else (done, now)
            self.phase = _Phase(total, unit, *start)
        self.fraction = min(1.0, max(0.0, done / total)) if total > 0 else 0.0

    def end(self, stage: str, now: float, *, cached: bool) -> None:
        self.took[stage] = now - self.began[stage]
        if cached:
            self.cached.add(stage)
        self.current = None

    def stage_left(self, now: float) -> float | None:
        """Of the current stage; None when there is none."""
        if self.current is None:
            return None
        if self.phase is not None and self.fraction >= _ENOUGH:
            done = self.fraction * self.phase.total
            if done > self.phase.first:
                return (self.phase.total - done) * (now - self.phase.began) / (done - self.phase.first)
        return max(0.0, SHARES[self.current] * self._seconds_per_share(now) - (now - self.began[self.current]))

    def whole_left(self, now: float) -> float:
        """Of the current stage and all that come after."""
        ahead = [SHARES[stage] for stage in self.stages if stage not in self.began]
        return (self.stage_left(now) or 0.0) + sum(ahead) * self._seconds_per_share(now)

    def _seconds_per_share(self, now: float) -> float:
        """From the work that is done; stages that came from a cache say nothing about the pace."""
        worked = [stage for stage in self.took if stage not in self.cached]
        share, spent = sum(SHARES[stage] for stage in worked), sum(self.took[stage] for stage in worked)
        if self.current is not None and self.fraction >= _ENOUGH:
            share += SHARES[self.current] * self.fraction
            spent += now - self.began[self.current]
        # A first guess, outweighed as soon as a twentieth of the whole is done.
        return (spent + 0.05 * _TYPICAL_SECONDS) / (share + 0.05)
