"""The gates that the configuration sets, as checks with their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tasks.config import PromoteConfig
from tasks.promote.records import Duel
from tasks.statistics import Interval
from tasks.verdict import Check, Outcome
from tasks.wiring.kinds import Kind

CHAMPION_GATE = "no worse than the champion"
VERSION = "champion_version"  # the number of that check which tells who was champion when it was made


def gates(config: PromoteConfig, *, checks: Sequence[Check], speedup: Interval, duel: Duel | None) -> list[Check]:
    """One check per gate. What was measured badly (a check of `checks` is INVALID) is neither fast nor slow.

    Without a duel the gate against the champion is no check of these: who looked for the champion made one that says why.
    """
    invalid = [check.name for check in checks if check.verdict is Outcome.INVALID]
    made = [_faster(config.min_speedup, speedup, invalid)]
    if duel is not None and config.min_over_champion is not None:
        made.append(_no_worse(config.min_over_champion, duel, invalid))
    return made


def _faster(floor: float, speedup: Interval, invalid: list[str]) -> Check:
    return _gate(
        "faster",
        speedup.low > floor,
        invalid,
        told=f"speed-up {_told(speedup)}",
        passed=f"lies above {floor:g}",
        failed=f"its lower end is not above {floor:g}. "
        "Train on more data like what is served, for more epochs, or measure longer if the interval is wide",
        kind=Kind.NOT_FASTER,
        numbers={"speedup": speedup.value, **_ends(speedup), "floor": floor},
    )


def _no_worse(floor: float, duel: Duel, invalid: list[str]) -> Check:
    """Worse beyond noise: even the upper end of the interval lies below the floor."""
    return _gate(
        CHAMPION_GATE,
        duel.over.high >= floor,
        invalid,
        told=f"{duel.candidate_tok_s:.1f} tok/s beside the champion's {duel.champion_tok_s:.1f} (version {duel.version}, {duel.setting}), "
        f"ratio of paired times {_told(duel.over)}",
        passed=f"reaches {floor:g}",
        failed=f"even its upper end is below {floor:g}: worse beyond noise. The champion stays; train longer or on more data",
        kind=Kind.WORSE_THAN_CHAMPION,
        numbers={
            "over_champion": duel.over.value,
            **_ends(duel.over),
            "floor": floor,
            "candidate_tok_s": duel.candidate_tok_s,
            "champion_tok_s": duel.champion_tok_s,
            VERSION: duel.version,
        },
    )


def _gate(name: str, fine: bool, invalid: list[str], *, told: str, passed: str, failed: str, kind: Kind, numbers: dict[str, Any]) -> Check:
    if invalid:
        message = f"{told} is not judged, because the measurement is invalid: {', '.join(invalid)}."
        return Check(name=name, verdict=Outcome.INVALID, kind=Kind.INVALID_MEASUREMENT, message=message, numbers=numbers)
    if fine:
        return Check(name=name, verdict=Outcome.PASS, message=f"{told} {passed}.", numbers=numbers)
    return Check(name=name, verdict=Outcome.FAIL, kind=kind, message=f"{told}: {failed}.", numbers=numbers)


def _told(interval: Interval) -> str:
    return f"{interval.value:.3f} (interval {interval.low:.3f} to {interval.high:.3f})"


def _ends(interval: Interval) -> dict[str, float]:
    return {"low": interval.low, "high": interval.high, "level": interval.level}
