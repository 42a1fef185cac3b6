"""About how long a run still takes, from what is finished and from the typical share of each stage."""

from __future__ import annotations

from dataclasses import dataclass, field

# Measured on the demo, on two cores, as shares of the whole. Only their proportions matter once a stage has ended.
SHARES: dict[str, float] = {
    "environment": 0.005,
    "target": 0.03,
    "data": 0.22,
    "capture": 0.03,
    "train": 0.37,
    "export": 0.005,
    "verify": 0.08,
    "benchmark": 0.25,
    "promote": 0.01,
}
_TYPICAL_SECONDS = 20 * 60.0
_ENOUGH = 0.02  # share of a stage that has to be done before its own pace is believed


@dataclass
class Estimate:
    """Fed with the stages' begin, progress and end; every time is in seconds on one clock."""

    began: dict[str, float] = field(default_factory=dict)
    took: dict[str, float] = field(default_factory=dict)
    cached: set[str] = field(default_factory=set)
    current: str | None = None
    fraction: float = 0.0

    def begin(self, stage: str, now: float) -> None:
        self.current, self.fraction = stage, 0.0
        self.began[stage] = now

    def progress(self, done: float, total: float) -> None:
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
        spent = now - self.began[self.current]
        if self.fraction >= _ENOUGH:
            return spent * (1 - self.fraction) / self.fraction
        return max(0.0, SHARES.get(self.current, 0.0) * self._seconds_per_share() - spent)

    def whole_left(self, now: float) -> float:
        """Of the current stage and all that come after."""
        ahead = [share for stage, share in SHARES.items() if stage not in self.began]
        return (self.stage_left(now) or 0.0) + sum(ahead) * self._seconds_per_share()

    def _seconds_per_share(self) -> float:
        """From the finished stages that did their work; those that came from a cache say nothing about the pace."""
        worked = [stage for stage in self.took if stage not in self.cached and stage in SHARES]
        share = sum(SHARES[stage] for stage in worked)
        # A first guess that the finished stages outweigh as soon as they are a tenth of the whole.
        return (sum(self.took[stage] for stage in worked) + 0.1 * _TYPICAL_SECONDS) / (share + 0.1)
