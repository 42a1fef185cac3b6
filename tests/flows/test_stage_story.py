"""What the page of each run in MLflow says, read back from a real store."""

from __future__ import annotations

import pytest

from flows.outcome import RunReport
from flows.progress import PlainLines
from flows.session import Session
from flows.story import charts, title
from tasks.ledger import Ledger, Run, open_ledger
from tasks.store import Store
from tasks.verdict import Check, MachineTrouble, Outcome, Verdict


@pytest.fixture
def ledger() -> Ledger:
    return open_ledger("tiny")


def note(ledger: Ledger, run: Run) -> str:
    return str(ledger.client.get_run(run.id).data.tags["mlflow.note.content"])


def test_a_stage_tells_its_figures_its_verdict_and_where_the_rest_is(ledger: Ledger) -> None:
    checks = [Check(name="fine", verdict=Outcome.PASS, message="1.0"), Check(name="odd", verdict=Outcome.WARN, message="look here")]
    with ledger.run("pipeline") as run:
        session = Session(run, PlainLines(), Store())
        with session.stage("benchmark") as stage:
            assert note(ledger, run.child("benchmark")).startswith("The plain against the speculative server")
            stage.log({"speedup": 1.25, "verify_rounds": 1234})
            stage.text("benchmark.md", "# Benchmark")
            stage.verdict(Verdict.of("benchmark", checks, passed="all well"))
    told = note(ledger, run.child("benchmark"))
    assert "**WARN**" in told and "- **WARN** odd: look here" in told and "fine" not in told
    assert "| speedup | 1.25 |\n| verify_rounds | 1,234 |" in told and "`benchmark.md`" in told


def test_a_stage_that_failed_says_by_what_and_a_cached_one_that_it_was(ledger: Ledger) -> None:
    store = Store()
    with ledger.run("pipeline") as run:
        session = Session(run, PlainLines(), store)
        with pytest.raises(MachineTrouble), session.stage("deploy"):
            raise MachineTrouble("no port")
        store.hits.add("data")
        with session.stage("data"):
            pass
        with pytest.raises(KeyboardInterrupt), session.stage("train"):
            raise KeyboardInterrupt
    assert "**Ended by an error**: no port" in note(ledger, run.child("deploy"))
    assert "Found in the cache" in note(ledger, run.child("data"))
    assert note(ledger, run.child("train")).startswith("The drafter") and "Done" not in note(ledger, run.child("train"))


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        ({"verdict": "WARN", "kind": "invalid-measurement", "exit_status": 0, "metrics": {"bench.speedup": 1.3961}}, "WARN 1.40×"),
        ({"verdict": "FAIL", "kind": "not-faster", "exit_status": 1, "metrics": {"bench.speedup": 0.9}}, "FAIL not-faster"),
        ({"verdict": "PASS", "kind": None, "exit_status": 0}, "PASS"),
    ],
)
def test_a_runs_name_says_how_it_ended(report: dict[str, object], expected: str, ledger: Ledger) -> None:
    assert title(RunReport.model_validate({"stage": "promote", "message": "", **report})) == expected
    with ledger.run("now") as run:
        run.rename(f"{expected} now")
    assert ledger.client.get_run(run.id).info.run_name == f"{expected} now"


def test_charts_are_in_sections_and_accuracy_is_a_curve_over_draft_steps() -> None:
    accuracies = {"train.accuracy_step0": 0.6, "train.accuracy_step1": 0.4, "verify.accuracy_step0": 0.6, "verify.accuracy_full_step0": 0.5}
    assert charts({**accuracies, "bench.speedup": 1.4, "bench.topk": 1}) == {
        0: {"speed/speed-up": 1.4, "accuracy/training": 0.6, "accuracy/standalone": 0.6},
        1: {"accuracy/training": 0.4},
    }
    assert charts({}) == {0: {}}
