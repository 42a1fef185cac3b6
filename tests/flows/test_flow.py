"""The flow itself, with the real Prefect and MLflow: how it ends where it ends early, and how signals end it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from prefect import flow
from prefect.states import Completed

from flows.artifacts import show
from flows.outcome import RunReport
from flows.progress import last_report, watcher
from flows.train_verify_deploy import Parameters, train_verify_deploy
from tests.flows.test_cli import PROJECT, written
from tests.processes import processes_of


class Listener:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, ...]] = []

    def begin(self, stage: str) -> None:
        self.told.append(("begin", stage))

    def progress(self, *_: Any) -> None:
        return None

    def say(self, stage: str, text: str) -> None:
        self.told.append(("say", stage, text))

    def end(self, stage: str, outcome: str) -> None:
        self.told.append(("end", stage, outcome))


def ended(config: dict[str, Any], folder: Path) -> tuple[Any, Any, Listener]:
    listener = Listener()
    watcher.set(listener)
    state: Any = train_verify_deploy(Parameters(config_file=str(written(folder, config))), return_state=True)
    return state, last_report.get(), listener


def config_for(target: Path, **sections: Any) -> dict[str, Any]:
    fitting = {"train": {"draft_vocab_size": 64}, "data": {"prompt_tokens": 32, "answer_tokens": 32}, "deploy": {"context_length": 256}}
    return {"target": {"source": str(target), "name": "tiny"}, **fitting, **sections}


EARLY = {
    "a boundary outside of the model": ({"capture": {"boundaries": [0, 2, 6]}}, "capture.boundaries: found [0, 2, 6]"),
    "a draft vocabulary above the target's": ({"train": {"draft_vocab_size": 97}}, "train.draft_vocab_size: found 97; expected at most 96"),
    "a batch that holds no conversation": (
        {"train": {"draft_vocab_size": 64, "tokens_per_batch": 63}},
        "train.tokens_per_batch: found 63; expected at least 64",
    ),
    "more requests at once than a server takes": (
        {"benchmark": {"concurrency": 5}, "deploy": {"context_length": 256, "max_running_requests": 4}},
        "deploy.max_running_requests: found 4; expected at least 5",
    ),
    "answers longer than the context": (
        {"deploy": {"context_length": 96}, "benchmark": {"output_tokens": 96}},
        "benchmark.output_tokens: found 96",
    ),
}


@pytest.mark.parametrize("case", EARLY)
def test_what_does_not_fit_the_target_is_found_before_work_is_spent(case: str, prefect: None, tiny_target: Path, tmp_path: Path) -> None:
    import mlflow

    sections, message = EARLY[case]
    defaults = {"capture": {"boundaries": [0, 2, 4]}}
    state, report, listener = ended(config_for(tiny_target, **{**defaults, **sections}), tmp_path)
    assert (state.type.value, report.verdict, report.kind, report.exit_status) == ("FAILED", "ERROR", "bad-input", 2)
    assert message in report.message and message in state.message
    assert [told[1] for told in listener.told if told[0] == "begin"] == ["environment", "target"]
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{os.environ['DRAFTPROOF_HOME']}/mlflow.db")
    run = client.get_run(report.mlflow_run_id)
    assert (run.info.status, run.data.tags["draftproof.verdict"], run.data.tags["draftproof.kind"]) == ("FAILED", "ERROR", "bad-input")
    assert run.data.tags["draftproof.target_sha256"] and run.data.tags["draftproof.flow_run_id"] and run.data.tags["draftproof.commit"]
    note = run.data.tags["mlflow.note.content"]
    assert note.startswith("## ERROR `bad-input` in target") and "An EAGLE-3 drafter for **tiny**" in note and message.split(";")[0] in note
    assert run.info.run_name.startswith("ERROR bad-input 20")
    stages = {
        child.info.run_name: child.data.tags["mlflow.note.content"]
        for child in client.search_runs([run.info.experiment_id])
        if child.info.run_id != run.info.run_id
    }
    assert set(stages) == {"environment", "target"} and "| layers | 6 |" in stages["target"]
    shown = artifacts(state.state_details.flow_run_id)
    assert set(shown) == {"verdict"} and message in shown["verdict"].data and report.mlflow_run_id in shown["verdict"].data


def artifacts(flow_run_id: Any) -> dict[str, Any]:
    """By key, as Prefect's API has them. Each is made once."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId

    with get_client(sync_client=True) as client:
        found = client.read_artifacts(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[flow_run_id])))
    assert len({artifact.key for artifact in found}) == len(found)
    return {artifact.key: artifact for artifact in found}


def test_the_page_in_prefect_shows_what_was_measured(prefect: None, monkeypatch: pytest.MonkeyPatch) -> None:
    accuracies = {
        "train.accuracy_step0": 0.6,
        "verify.accuracy_step0": 0.6,
        "verify.accuracy_step1": 0.4,
        "verify.accuracy_full_step0": 0.5,
    }
    bench = {"bench.speedup": 1.3, "bench.speedup_low": 1.2, "bench.speedup_high": 1.4, "bench.identical": 9, "bench.compared": 10}
    bench |= {"bench.baseline_tok_s": 20.0, "bench.spec_tok_s": 26.0, "verify.accept_length": 1.9, "bench.accept_length": 1.91}
    passed = {"verdict": "PASS", "kind": None, "stage": "promote", "message": "faster", "exit_status": 0, "mlflow_run_id": "0" * 32}
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")  # gone by now: no link, and no failure
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")

    @flow
    def shown() -> Any:
        show(RunReport(**passed, metrics={**accuracies, **bench}))
        return Completed()

    state: Any = shown(return_state=True)
    made = artifacts(state.state_details.flow_run_id)
    assert set(made) == {"verdict", "accuracy", "a-b"} and "PASS" in made["verdict"].data
    training, standalone, own = "training", "standalone", "standalone, target's own token"
    assert json.loads(made["accuracy"].data) == [
        {"draft step": "0", training: "0.600", standalone: "0.600", own: "0.500"},
        {"draft step": "1", training: "", standalone: "0.400", own: ""},
    ]
    versus = {row["figure"]: row for row in json.loads(made["a-b"].data)}
    assert versus["output tokens per second"] == {
        "figure": "output tokens per second",
        "plain": "20.0",
        "speculative": "26.0",
        "compared": "speed-up 1.300 (1.200 to 1.400)",
    }
    assert versus["tokens per verify round"]["compared"] == "predicted 1.900"
    assert versus["greedy texts"]["compared"] == "9 of 10 identical"


def test_a_target_that_cannot_be_used(prefect: None, tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "config.json").write_text(json.dumps({"model_type": "mamba", "architectures": ["MambaForCausalLM"]}))
    state, report, _ = ended(config_for(tmp_path / "target"), tmp_path)
    assert (state.type.value, report.exit_status, report.stage) == ("FAILED", 2, "target")


def test_what_a_server_would_refuse_is_found_before_work_is_spent(prefect: None, tiny_target: Path, tmp_path: Path) -> None:
    config = config_for(tiny_target, capture={"boundaries": [0, 2, 4]}, deploy={"context_length": 1024})
    state, report, listener = ended(config, tmp_path)
    assert (state.type.value, report.verdict, report.kind, report.exit_status) == ("FAILED", "FAIL", "context-length", 1)
    assert [told[1] for told in listener.told if told[0] == "begin"] == ["environment", "target"]


def test_a_rope_that_no_drafter_can_have_is_found_before_work_is_spent(prefect: None, tiny_target: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_target, tmp_path / "target")
    path = tmp_path / "target" / "config.json"
    yarn = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0}
    path.write_text(json.dumps({**json.loads(path.read_text()), "rope_parameters": yarn}))
    _, report, listener = ended(config_for(tmp_path / "target", capture={"boundaries": [0, 2, 4]}), tmp_path)
    assert (report.kind, report.exit_status) == ("bad-input", 2) and "kind 'yarn'" in report.message
    assert [told[1] for told in listener.told if told[0] == "begin"] == ["environment", "target"]


def test_a_disk_that_is_too_small_is_the_machines_trouble(prefect: None, tiny_target: Path, tmp_path: Path) -> None:
    huge = {"conversations": 10**9, "prompt_tokens": 512, "answer_tokens": 512}
    state, report, _ = ended(config_for(tiny_target, data=huge), tmp_path)
    assert (state.type.value, report.kind, report.exit_status, report.stage) == ("CRASHED", "machine-trouble", 3, "environment")
    assert "GB" in report.message


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_signals_leave_nothing_behind(number: signal.Signals, status: int, tiny_target: Path, tmp_path: Path) -> None:
    """A long answering is interrupted: the ledger says KILLED (at the next start after SIGKILL), and no process is left."""
    import mlflow

    from tasks.ledger import open_ledger

    home = Path(os.environ["DRAFTPROOF_HOME"])
    words = [f"w{i} w{j} w{k}" for i in range(20) for j in range(20) for k in range(20)]
    (tmp_path / "long.jsonl").write_text("".join(json.dumps({"messages": [{"role": "user", "content": w}]}) + "\n" for w in words))
    long = {"prompts": str(tmp_path / "long.jsonl"), "conversations": 8000, "prompt_tokens": 128, "answer_tokens": 256}
    path = written(tmp_path, config_for(tiny_target, data=long, train={"draft_vocab_size": 64}, capture={"boundaries": [0, 2, 4]}))
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_"))}
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "flows.cli", "run", str(path)], cwd=PROJECT, env=environment, stderr=log)
    deadline = time.monotonic() + 240
    while b" conversations;" not in (tmp_path / "log").read_bytes():
        assert process.poll() is None and time.monotonic() < deadline, (tmp_path / "log").read_text()
        time.sleep(0.5)
    process.send_signal(number)
    assert process.wait(60) == status, (tmp_path / "log").read_text()
    for left in range(20):
        if not processes_of(home):
            break
        time.sleep(0.5 * (left > 0))
    assert processes_of(home) == []
    assert "Traceback" not in (tmp_path / "log").read_text()
    if number == signal.SIGKILL:
        open_ledger("tiny")
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{home}/mlflow.db")
    runs = client.search_runs([client.get_experiment_by_name("draftproof/tiny").experiment_id])
    assert {run.info.run_name: run.info.status for run in runs}["data"] == "KILLED"
    assert {run.info.status for run in runs} == {"KILLED", "FINISHED"}
