"""The gates that the configuration sets, as checks with their numbers."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.config import PromoteConfig
from tasks.statistics import Interval
from tasks.verdict import Check, Outcome
from tasks.wiring.kinds import Kind


def gates(config: PromoteConfig, *, checks: Sequence[Check], speedup: Interval) -> list[Check]:
    """One check per gate. What was measured badly (a check of `checks` is INVALID) is neither fast nor slow."""
    return [_faster(config.min_speedup, speedup, invalid=[check.name for check in checks if check.verdict is Outcome.INVALID])]


def _faster(floor: float, speedup: Interval, *, invalid: list[str]) -> Check:
    numbers = {"speedup": speedup.value, "low": speedup.low, "high": speedup.high, "level": speedup.level, "floor": floor}
    measured = f"speed-up {speedup.value:.3f} (interval {speedup.low:.3f} to {speedup.high:.3f})"
    if invalid:
        return Check(
            name="faster",
            verdict=Outcome.INVALID,
            kind=Kind.INVALID_MEASUREMENT,
            message=f"{measured} is not judged, because the measurement is invalid: {', '.join(invalid)}.",
            numbers=numbers,
        )
    if speedup.low > floor:
        return Check(name="faster", verdict=Outcome.PASS, message=f"{measured} lies above {floor:g}.", numbers=numbers)
    return Check(
        name="faster",
        verdict=Outcome.FAIL,
        kind=Kind.NOT_FASTER,
        message=f"{measured}: its lower end is not above {floor:g}. "
        "Train on more data like what is served, for more epochs, or measure longer if the interval is wide.",
        numbers=numbers,
    )
