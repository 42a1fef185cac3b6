"""The decision, which is pure."""

from __future__ import annotations

import pytest

from tasks.config import PromoteConfig
from tasks.promote import Duel, decide
from tasks.statistics import Interval
from tasks.verdict import Check, Outcome

CHAMPION = "no worse than the champion"
PASSED = Check(name="parity", verdict=Outcome.PASS, message="equal")


def speedup(low: float, high: float) -> Interval:
    return Interval(value=(low + high) / 2, low=low, high=high)


@pytest.mark.parametrize(
    ("low", "high", "floor", "outcome", "kind"),
    [
        (1.05, 1.20, 1.0, Outcome.PASS, None),
        (1.001, 3.0, 1.0, Outcome.PASS, None),
        (1.0, 1.2, 1.0, Outcome.FAIL, "not-faster"),  # the lower end has to be above the floor, not on it
        (0.95, 1.2, 1.0, Outcome.FAIL, "not-faster"),
        (1.05, 1.20, 1.1, Outcome.FAIL, "not-faster"),
        (0.5, 0.6, 0.4, Outcome.PASS, None),
    ],
)
def test_speed_gate(low: float, high: float, floor: float, outcome: Outcome, kind: str | None) -> None:
    verdict = decide(PromoteConfig(min_speedup=floor), checks=[PASSED], speedup=speedup(low, high))
    assert (verdict.verdict, verdict.kind) == (outcome, kind)
    gate = next(check for check in verdict.checks if check.name == "faster")
    assert gate.numbers == {"speedup": (low + high) / 2, "low": low, "high": high, "level": 0.95, "floor": floor}


def test_a_warning_passes_and_is_told() -> None:
    warning = Check(name="lossless", verdict=Outcome.WARN, kind="greedy-divergence", message="one near-tie")
    verdict = decide(PromoteConfig(), checks=[PASSED, warning], speedup=speedup(1.1, 1.2))
    assert (verdict.verdict, verdict.kind, verdict.message) == (Outcome.WARN, "greedy-divergence", "one near-tie")


def test_what_was_measured_badly_is_neither_fast_nor_slow() -> None:
    invalid = Check(name="acceptance in range", verdict=Outcome.INVALID, kind="invalid-measurement", message="5 of at most 4")
    for interval in (speedup(0.5, 0.6), speedup(2.0, 2.1)):
        verdict = decide(PromoteConfig(), checks=[PASSED, invalid], speedup=interval)
        assert (verdict.verdict, verdict.kind) == (Outcome.INVALID, "invalid-measurement")


def test_a_broken_link_outweighs_the_speed() -> None:
    broken = Check(name="acceptance", verdict=Outcome.FAIL, kind="layer-boundaries", message="1.2 for 2.1")
    verdict = decide(PromoteConfig(), checks=[PASSED, broken], speedup=speedup(1.5, 1.6))
    assert (verdict.verdict, verdict.kind) == (Outcome.FAIL, "layer-boundaries")


def duel(low: float, high: float) -> Duel:
    return Duel(version="3", setting="2 steps", champion_tok_s=70.0, candidate_tok_s=61.0, over=speedup(low, high))


@pytest.mark.parametrize(
    ("low", "high", "floor", "outcome", "kind"),
    [
        (1.10, 1.20, 1.0, Outcome.PASS, None),
        (0.95, 1.05, 1.0, Outcome.PASS, None),  # not told apart from the champion: no worse
        (0.90, 1.00, 1.0, Outcome.PASS, None),
        (0.90, 0.999, 1.0, Outcome.FAIL, "worse-than-champion"),
        (0.90, 0.97, 0.95, Outcome.PASS, None),  # a loss that the config allows
        (0.90, 0.94, 0.95, Outcome.FAIL, "worse-than-champion"),
        (0.50, 0.60, None, Outcome.PASS, None),  # switched off
    ],
)
def test_gate_against_the_champion(low: float, high: float, floor: float | None, outcome: Outcome, kind: str | None) -> None:
    verdict = decide(PromoteConfig(min_over_champion=floor), checks=[PASSED], speedup=speedup(1.5, 1.6), duel=duel(low, high))
    assert (verdict.verdict, verdict.kind) == (outcome, kind)
    gate = next((check for check in verdict.checks if check.name == CHAMPION), None)
    assert (gate is None) == (floor is None)
    if gate:
        assert gate.message.startswith("61.0 tok/s beside the champion's 70.0 (version 3, 2 steps)")
        assert (gate.numbers["low"], gate.numbers["high"], gate.numbers["floor"]) == (low, high, floor)
        assert (gate.numbers["candidate_tok_s"], gate.numbers["champion_tok_s"]) == (61.0, 70.0)


def test_without_a_champion_there_is_no_gate_against_it() -> None:
    verdict = decide(PromoteConfig(), checks=[PASSED], speedup=speedup(1.5, 1.6))
    assert [check.name for check in verdict.checks] == ["parity", "faster"]


def test_slower_than_the_plain_server_is_told_first() -> None:
    verdict = decide(PromoteConfig(), checks=[PASSED], speedup=speedup(0.8, 0.9), duel=duel(0.5, 0.6))
    assert verdict.kind == "not-faster"
    assert {check.kind for check in verdict.checks} == {None, "not-faster", "worse-than-champion"}


def test_what_was_measured_badly_is_neither_worse_nor_better_than_the_champion() -> None:
    invalid = Check(name="champion comparable", verdict=Outcome.INVALID, kind="invalid-measurement", message="3 of another length")
    for against in (duel(0.5, 0.6), duel(2.0, 2.1)):
        verdict = decide(PromoteConfig(), checks=[PASSED, invalid], speedup=speedup(1.5, 1.6), duel=against)
        assert (verdict.verdict, verdict.kind) == (Outcome.INVALID, "invalid-measurement")
        assert next(check for check in verdict.checks if check.name == CHAMPION).verdict is Outcome.INVALID
