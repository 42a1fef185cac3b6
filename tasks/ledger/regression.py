"""A run against the champion's and the earlier ones: what fell, and which stage moved first.

Compared are ratios that are 1 where the wiring is right, whatever the drafter's quality: a fault that costs a point of
accuracy stays inside of every absolute gate, and shows here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from tasks.ledger.history import PastRun
from tasks.verdict import Check, Outcome
from tasks.wiring.kinds import Kind

_ENOUGH = 3
"""Earlier runs from which the noise can be told; with fewer a fall is a WARN."""
_SIGMAS = 3.0
_MAD_TO_SIGMA = 1.4826  # of a normal distribution
_HEALTHY = ("", Kind.QUALITY, Kind.NOT_FASTER, Kind.WORSE_THAN_CHAMPION)
"""Kinds of verdict that say nothing against the wiring."""
_HEALTHY_WARNING = (Kind.INVALID_MEASUREMENT, Kind.GREEDY_DIVERGENCE)
"""Neither do these where they are a WARN: a machine that was not quiet, near-ties of lower precision."""


@dataclass(frozen=True)
class _Link:
    name: str
    stage: str
    above: str
    below: str
    kind: Kind

    def ratio(self, metrics: Mapping[str, float]) -> float | None:
        above, below = metrics.get(self.above), metrics.get(self.below)
        return above / below if above is not None and below else None


_LINKS = (
    _Link("standalone / training accuracy", "verify", "verify.accuracy_step0", "train.accuracy_step0", Kind.TEACHER_TARGETS),
    _Link("served / predicted acceptance", "benchmark", "bench.accept_length", "verify.accept_length", Kind.RUNTIME_INTERACTION),
)
"""In the order of the chain."""


def regressions(now: Mapping[str, float], earlier: Sequence[PastRun], *, target_sha256: str, host: str, tolerance: float) -> list[Check]:
    """One check per link that this run and an earlier one on the same target and machine have measured.

    A fall is told from noise by `tolerance` (a share of the reference), or three standard deviations of the earlier
    runs where that is more. It is a FAIL below the median of at least three earlier runs, and else a WARN.
    The message of each alarm names the stage that moved first, the training's own accuracy included.
    """
    known = [run for run in earlier if (run.target_sha256, run.host) == (target_sha256, host) and _healthy(run)]
    checks = [check for link in _LINKS if (check := _compared(link, now, known, tolerance)) is not None]
    fallen = [check for check in checks if check.verdict is not Outcome.PASS]
    if not fallen:
        return checks
    first = _first_moved(now, known, tolerance) or str(fallen[0].stage)
    return [
        check if check.verdict is Outcome.PASS else check.model_copy(update={"message": f"{check.message} Moved first: {first}."})
        for check in checks
    ]


def _healthy(run: PastRun) -> bool:
    return run.kind in _HEALTHY or (run.verdict == Outcome.WARN and run.kind in _HEALTHY_WARNING)


def _compared(link: _Link, now: Mapping[str, float], earlier: Sequence[PastRun], tolerance: float) -> Check | None:
    ratio = link.ratio(now)
    before = [(run, value) for run in earlier if (value := link.ratio(run.metrics)) is not None]
    if ratio is None or not before:
        return None
    values = [value for _, value in before]
    middle = median(values)
    noise = max(tolerance * middle, _SIGMAS * _MAD_TO_SIGMA * median(abs(value - middle) for value in values))
    champion = next((value for run, value in reversed(before) if run.champion), None)
    numbers = {"ratio": ratio, "median": middle, "runs": len(values), "champion": champion, "noise": noise}
    told = f"{ratio:.4f}, of {len(values)} earlier runs {middle:.4f}"
    told += f", of the champion {champion:.4f}" if champion is not None else ""
    if ratio >= max(middle, champion if champion is not None else middle) - noise:
        return Check(name=link.name, verdict=Outcome.PASS, stage=link.stage, message=f"{link.name} {told}", numbers=numbers)
    broken = len(values) >= _ENOUGH and ratio < middle - noise
    return Check(
        name=link.name,
        verdict=Outcome.FAIL if broken else Outcome.WARN,
        kind=link.kind,
        stage=link.stage,
        message=f"{link.name} fell: {told}; noise explains {noise:.4f}. `draftproof diff` with an earlier run shows what changed.",
        numbers=numbers,
    )


def _first_moved(now: Mapping[str, float], earlier: Sequence[PastRun], tolerance: float) -> str | None:
    """The first stage whose own figure is lower than the earlier runs' by more than the tolerance."""
    name = "train.accuracy_step0"
    before = [run.metrics[name] for run in earlier if name in run.metrics]
    if before and name in now and now[name] < (1 - tolerance) * median(before):
        return f"train (accuracy {now[name]:.3f}, of earlier runs {median(before):.3f})"
    return None
