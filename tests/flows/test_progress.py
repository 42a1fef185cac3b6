"""The estimate, and both displays."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from flows.estimate import SHARES, Estimate
from flows.outcome import RunReport
from flows.progress import LiveDisplay, PlainLines, spell
from flows.story import describe, rows, table

METRICS = {
    "train.accuracy_step0": 0.71,
    "train.accuracy_step1": 0.5,
    "verify.accuracy_step0": 0.708,
    "verify.max_logit_diff": 2.1e-5,
    "verify.accept_length": 2.301,
    "bench.accept_length": 2.288,
    "bench.baseline_tok_s": 41.2,
    "bench.spec_tok_s": 55.9,
    "bench.speedup": 1.357,
    "bench.speedup_low": 1.301,
    "bench.speedup_high": 1.41,
}


def test_shares_are_a_whole() -> None:
    assert sum(SHARES.values()) == pytest.approx(1.0)


def test_estimate_follows_the_pace_of_this_machine() -> None:
    """On a machine where everything takes `scale` times its share, the estimate comes near the truth early."""
    for scale in (200.0, 5000.0):
        estimate, now = Estimate(), 0.0
        for stage, share in SHARES.items():
            if stage == "train":
                left = sum(s for name, s in SHARES.items() if name not in estimate.took) * scale
                estimate.begin(stage, now)
                estimate.progress(0.5, 1, "steps", now)
                assert estimate.whole_left(now + 0.5 * share * scale) == pytest.approx(left - 0.5 * share * scale, rel=0.7)
            else:
                estimate.begin(stage, now)
            now += share * scale
            estimate.end(stage, now, cached=False)
        assert estimate.whole_left(now) == 0


def test_a_stage_tells_its_own_pace() -> None:
    estimate = Estimate()
    estimate.begin("train", 100.0)
    estimate.progress(25, 100, "steps", 110.0)
    assert estimate.stage_left(110.0) == pytest.approx(30.0)


def test_what_a_stage_counts_next_has_a_pace_of_its_own() -> None:
    estimate = Estimate()
    estimate.begin("benchmark", 0.0)
    estimate.progress(4, 4, "explore pairs", 100.0)
    estimate.progress(1, 42, "final pairs", 130.0)
    estimate.progress(3, 42, "final pairs", 138.0)
    assert estimate.stage_left(138.0) == pytest.approx(39 * 4)


def test_cached_stages_say_nothing_about_the_pace() -> None:
    estimate, untouched = Estimate(), Estimate()
    estimate.begin("target", 0)
    estimate.end("target", 0.1, cached=True)
    ahead = sum(share for stage, share in SHARES.items() if stage != "target")
    assert estimate.whole_left(1) / ahead == pytest.approx(untouched.whole_left(1) / 1.0)


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (89, "89 s"), (91, "2 min"), (5390, "90 min"), (5460, "1 h 31 min")])
def test_spelling(seconds: float, text: str) -> None:
    assert spell(seconds).replace("1 h 30", "90") == text


def test_plain_lines_are_few(capsys: pytest.CaptureFixture[str]) -> None:
    with PlainLines() as lines:
        lines.begin("train")
        for i in range(1000):
            lines.progress("train", i, 1000, "steps", {"loss": 2.5})
        lines.say("train", "saved")
        lines.end("train", "done")
    told = capsys.readouterr().err.splitlines()
    assert [line.split(maxsplit=2)[1] for line in told] == ["train"] * 3
    assert "about" in told[0] and "saved" in told[1] and "done after" in told[2]


def test_live_display_tells_stage_progress_and_figures() -> None:
    stream = io.StringIO()
    display = LiveDisplay(Console(file=stream, force_terminal=True, width=140))
    with display:
        display.begin("target")
        display.end("target", "cached")
        display.begin("train")
        display.progress("train", 30, 120, "steps", {"accuracy": 0.61, "tok/s": 431.0})
        display.say("train", "resumed")
    told = stream.getvalue()
    for words in ("from the cache", "30/120 steps", "accuracy 0.61, tok/s 431", "left", "train: resumed"):
        assert words in told


def report(**more: object) -> RunReport:
    given = {"verdict": "PASS", "kind": None, "stage": "promote", "message": "fine", "exit_status": 0, "metrics": METRICS}
    return RunReport.model_validate({**given, **more})


def test_the_table_holds_every_figure() -> None:
    told = dict(rows(report()))
    assert told["training accuracy (held out, by draft step)"] == "0.710  0.500"
    assert told["speed-up (95% interval)"] == "1.357 (1.301 to 1.410)"
    stream = io.StringIO()
    Console(file=stream, width=120).print(table(report(verdict="FAIL", kind="not-faster", exit_status=1)))
    for words in ("standalone accuracy", "2.1e-05", "2.301", "2.288", "41.2 tok/s", "55.9 tok/s", "FAIL [not-faster]"):
        assert words in stream.getvalue()


def test_the_description_names_what_is_no_pass() -> None:
    check = {"name": "parity", "verdict": "FAIL", "kind": "rope", "message": "0.5 apart"}
    told = describe(report(verdict="FAIL", kind="rope", exit_status=1, checks=[check], drafter=Path("/d")))
    assert "## FAIL `rope`" in told and "**FAIL** parity: 0.5 apart" in told and "`/d`" in told
