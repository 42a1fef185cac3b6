"""The ledger on a real MLflow store (SQLite)."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tasks.ledger import Ledger, open_ledger
from tasks.verdict import BadInput, Check, MachineTrouble, Outcome, Verdict

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One store for the module: a fresh one costs seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'ledger.db'}")
        yield open_ledger("tiny")


def status(ledger: Ledger, run_id: str) -> str:
    return str(ledger.client.get_run(run_id).info.status)


def test_experiment_and_child(ledger: Ledger) -> None:
    with ledger.run("pipeline", {"draftproof.commit": "abc"}) as run, run.child("train") as child:
        child.log({"accuracy_step0": 0.5})
    experiment = ledger.client.get_experiment(ledger.experiment)
    assert experiment.name == "draftproof/tiny" and experiment.tags["mlflow.experimentKind"] == "custom_model_development"
    recorded = ledger.client.get_run(child.id).data
    assert recorded.tags["mlflow.parentRunId"] == run.id and recorded.metrics == {"accuracy_step0": 0.5}
    assert ledger.client.get_run(run.id).data.tags["draftproof.commit"] == "abc"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (None, "FINISHED"),
        (ValueError("x"), "FAILED"),
        (MachineTrouble("x"), "FAILED"),
        (KeyboardInterrupt(), "KILLED"),
        (SystemExit(143), "KILLED"),
    ],
)
def test_status_by_how_the_block_is_left(ledger: Ledger, error: BaseException | None, expected: str) -> None:
    ids = []
    try:
        with ledger.run("pipeline") as run, run.child("train") as child:
            ids = [run.id, child.id]
            if error is not None:
                raise error
    except BaseException as raised:
        assert raised is error
    assert [status(ledger, run_id) for run_id in ids] == [expected, expected]


def test_verdict_tags_and_fails_the_run(ledger: Ledger) -> None:
    check = Check(name="parity", verdict=Outcome.FAIL, kind="rope", message="0.5 apart", numbers={"difference": 0.5})
    with ledger.run("pipeline") as run:
        run.verdict(Verdict.of("verify", [check], passed=""))
    tags = ledger.client.get_run(run.id).data.tags
    assert status(ledger, run.id) == "FAILED"
    assert (tags["draftproof.verdict"], tags["draftproof.kind"], tags["draftproof.stage"]) == ("FAIL", "rope", "verify")
    kept = json.loads(Path(ledger.client.download_artifacts(run.id, "verdict.json")).read_text())
    assert kept["checks"][0]["numbers"] == {"difference": 0.5}


def test_a_stage_tried_again_goes_on_in_its_run(ledger: Ledger) -> None:
    with ledger.run("pipeline") as run:
        with pytest.raises(MachineTrouble), run.child("benchmark") as first:
            raise MachineTrouble("no port")
        assert status(ledger, first.id) == "FAILED"
        with run.child("benchmark") as second:
            assert status(ledger, second.id) == "RUNNING"
    assert second.id == first.id and status(ledger, second.id) == "FINISHED"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_figures_that_are_not_finite_are_refused(ledger: Ledger, value: float) -> None:
    with ledger.run("pipeline") as run:
        with pytest.raises(ValueError, match=r"bench\.speedup"):
            run.log({"bench.speedup": value, "bench.spec_tok_s": 1.0})
        run.metrics({"loss": value, "accuracy": 0.5}, step=3)
    recorded = ledger.client.get_run(run.id).data
    assert recorded.metrics == {"accuracy": 0.5}
    assert "loss" in recorded.tags["draftproof.refused_metrics"] and "step 3" in recorded.tags["draftproof.refused_metrics"]


def test_curves_are_whole_when_the_run_is_closed(ledger: Ledger) -> None:
    with ledger.run("pipeline") as run:
        for step in range(300):
            run.metrics({"loss": 1 / (step + 1), "accuracy": step / 300}, step)
    history = ledger.client.get_metric_history(run.id, "loss")
    assert [(point.step, point.value) for point in sorted(history, key=lambda p: p.step)] == [(s, 1 / (s + 1)) for s in range(300)]


def test_params_are_flat_and_may_be_long(ledger: Ledger) -> None:
    with ledger.run("pipeline") as run:
        run.params({"train": {"epochs": 3, "note": "x" * 10_000}, "seed": 0, **{f"k{i}": i for i in range(150)}})
    params = ledger.client.get_run(run.id).data.params
    assert params["train.epochs"] == "3" and params["k149"] == "149" and len(params["train.note"]) == 6000


ABANDON = """
import os, signal
from tasks.ledger import open_ledger
run = open_ledger("tiny").run("abandoned")
with run, run.child("train") as child:
    print(run.id, child.id, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_runs_of_a_killed_process_are_closed_at_the_next_start(ledger: Ledger) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ABANDON],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": str(PROJECT), "MLFLOW_TRACKING_URI": ledger.uri},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    abandoned = done.stdout.split()
    foreign = ledger.client.create_run(ledger.experiment, run_name="not ours")
    with ledger.run("still alive") as alive:
        assert [status(ledger, run_id) for run_id in abandoned] == ["RUNNING", "RUNNING"]
        closed = ledger.close_stale()
        assert set(closed) == set(abandoned)
        assert [status(ledger, run_id) for run_id in abandoned] == ["KILLED", "KILLED"]
        assert status(ledger, alive.id) == "RUNNING"
    assert status(ledger, foreign.info.run_id) == "RUNNING"
    ledger.client.set_terminated(foreign.info.run_id)


def test_several_processes_may_open_a_fresh_store_at_once(tmp_path: Path) -> None:
    code = "from tasks.ledger import open_ledger\nwith open_ledger('tiny').run('one'): pass"
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "DRAFTPROOF_HOME": str(tmp_path)}
    environment.pop("MLFLOW_TRACKING_URI", None)
    several = [subprocess.Popen([sys.executable, "-c", code], env=environment, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    errors = [process.communicate(timeout=180)[1] for process in several]
    assert [process.returncode for process in several] == [0] * 4, errors


def test_a_deleted_experiment_says_how_to_restore_it(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", ledger.uri)
    ledger.client.delete_experiment(open_ledger("gone").experiment)
    with pytest.raises(BadInput, match="mlflow experiments restore"):
        open_ledger("gone")


@pytest.mark.parametrize("uri", ["./mlruns", "file:///mlruns"])
def test_a_store_of_files_is_refused(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(BadInput, match="store of files"):
        open_ledger("tiny")


def test_a_server_that_is_not_there_is_the_machines_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    with pytest.raises(MachineTrouble, match="MLflow store"):
        open_ledger("tiny")
