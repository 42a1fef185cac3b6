"""What fell against earlier runs. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tasks.ledger.history import PastRun
from tasks.ledger.regression import regressions
from tasks.verdict import Check, Outcome

HEALTHY = {"train.accuracy_step0": 0.6, "verify.accuracy_step0": 0.6, "verify.accept_length": 2.0, "bench.accept_length": 2.0}
SERVED, ALONE = "served / predicted acceptance", "standalone / training accuracy"


def past(i: int, served: float = 2.0, **changes: Any) -> PastRun:
    given = {
        "id": str(i),
        "name": f"run {i}",
        "target": "tiny",
        "began": datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=i),
        "verdict": "PASS",
        "kind": "",
        "stage": "promote",
        "host": "here",
        "target_sha256": "a",
        "metrics": {**HEALTHY, "bench.accept_length": served},
        "champion": False,
    }
    return PastRun(**{**given, **changes})


def judged(earlier: list[PastRun], **metrics: float) -> dict[str, Check]:
    now = {**HEALTHY, **{name.replace("__", "."): value for name, value in metrics.items()}}
    return {check.name: check for check in regressions(now, earlier, target_sha256="a", host="here", tolerance=0.02)}


def test_without_an_earlier_run_nothing_is_compared() -> None:
    assert judged([]) == {}
    assert judged([past(0, host="elsewhere"), past(1, target_sha256="b"), past(2, verdict="FAIL", kind="rope")]) == {}


def test_a_machine_that_was_not_quiet_is_no_reason_to_forget_a_run() -> None:
    assert set(judged([past(0, verdict="WARN", kind="invalid-measurement"), past(1, verdict="WARN", kind="greedy-divergence")])) == {
        ALONE,
        SERVED,
    }
    assert judged([past(0, verdict="INVALID", kind="invalid-measurement"), past(1, verdict="FAIL", kind="greedy-divergence")]) == {}
    assert judged([past(0, verdict="WARN", kind="runtime-interaction")]) == {}, "an alarm is no reference"


def test_equal_runs_pass_with_their_numbers() -> None:
    found = judged([past(i) for i in range(3)])
    assert {check.verdict for check in found.values()} == {Outcome.PASS} and set(found) == {ALONE, SERVED}
    assert found[SERVED].numbers == {"ratio": 1.0, "median": 1.0, "runs": 3, "champion": None, "noise": 0.02}


@pytest.mark.parametrize(("runs", "outcome"), [(1, Outcome.WARN), (2, Outcome.WARN), (3, Outcome.FAIL)])
def test_a_fall_inside_of_the_absolute_gate_is_an_alarm(runs: int, outcome: Outcome) -> None:
    """3% lower than predicted passes the gate of 5%."""
    found = judged([past(i) for i in range(runs)], bench__accept_length=1.94)
    assert (found[SERVED].verdict, found[SERVED].kind, found[SERVED].stage) == (outcome, "runtime-interaction", "benchmark")
    assert found[SERVED].message.endswith("Moved first: benchmark.") and found[ALONE].verdict is Outcome.PASS


def test_the_stage_that_moved_first_is_told() -> None:
    found = judged([past(i) for i in range(3)], verify__accuracy_step0=0.57, bench__accept_length=1.9)
    assert [check.verdict for check in found.values()] == [Outcome.FAIL, Outcome.FAIL]
    assert all(check.message.endswith("Moved first: verify.") for check in found.values())
    found = judged([past(i) for i in range(3)], train__accuracy_step0=0.5, verify__accuracy_step0=0.47)
    assert "Moved first: train (accuracy 0.500, of earlier runs 0.600)." in found[ALONE].message


def test_a_worse_drafter_is_no_wiring_alarm() -> None:
    worse = {"train__accuracy_step0": 0.4, "verify__accuracy_step0": 0.4, "verify__accept_length": 1.5, "bench__accept_length": 1.5}
    assert {check.verdict for check in judged([past(i) for i in range(3)], **worse).values()} == {Outcome.PASS}


def test_what_earlier_runs_vary_by_is_noise() -> None:
    noisy = [past(i, served) for i, served in enumerate((1.90, 2.10, 1.95, 2.05, 2.0))]
    assert judged(noisy, bench__accept_length=1.88)[SERVED].verdict is Outcome.PASS
    assert judged(noisy, bench__accept_length=1.6)[SERVED].verdict is Outcome.FAIL


def test_below_the_champion_alone_is_a_warning() -> None:
    earlier = [past(0, 1.9), past(1, 1.9), past(2, 1.9), past(3, 2.0, champion=True)]
    found = judged(earlier, bench__accept_length=1.9)[SERVED]
    assert (found.verdict, found.numbers["champion"]) == (Outcome.WARN, 1.0)


def test_a_run_that_did_not_get_so_far_is_compared_as_far_as_it_got() -> None:
    now = {name: value for name, value in HEALTHY.items() if not name.startswith("bench.")}
    assert [check.name for check in regressions(now, [past(0)], target_sha256="a", host="here", tolerance=0.02)] == [ALONE]
