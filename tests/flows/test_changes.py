"""A run that is to be made only if something changed, against a real ledger."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from flows.changes import News, setup_tag
from flows.pipeline import run_pipeline
from flows.progress import PlainLines
from tasks.config import Config, TargetConfig
from tasks.data import prompts_sha256
from tasks.ledger import open_ledger
from tasks.report import Silent
from tasks.store import Store, machine
from tasks.target import prepare_target
from tasks.watch import Fall
from tasks.watch.kept import ServerCurve
from tests.flows.test_flow import Listener
from tests.tiny import prompts_jsonl

pytestmark = pytest.mark.usefixtures("prefect")  # the stages are its tasks
SMALL = {"deploy": {"context_length": 256}}


@pytest.fixture
def config(tiny_target: Path, tmp_path: Path) -> Config:
    """One that a run refuses as soon as it has seen the target, so that a run costs nothing here."""
    (tmp_path / "chats").mkdir()
    prompts_jsonl(tmp_path / "chats" / "first.jsonl")
    return Config.model_validate(
        {
            "target": {"source": str(tiny_target), "name": "tiny"},
            "data": {"prompts": str(tmp_path / "chats")},
            "capture": {"boundaries": [0, 2, 99]},
        }
    )


def measured(config: Config, verdict: str = "PASS") -> str:
    """A run as the pipeline leaves it in the ledger once the benchmark is through; its id."""
    target = prepare_target(TargetConfig(source=config.target.source, name="tiny"), store=Store(), report=Silent())
    tags = {"draftproof.target_sha256": target.sha256, "draftproof.prompts_sha256": prompts_sha256(config.data), **setup_tag(config)}
    with open_ledger("tiny").run("yesterday", {**tags, "draftproof.verdict": verdict}) as run:
        run.log({"bench.speedup": 1.2})
    return run.id


def tonight(config: Config, **options: Any) -> tuple[Any, dict[str, str]]:
    """The report, and the tags of the newest run in the ledger."""
    report = run_pipeline(config, refresh=options.pop("refresh", []), watcher=PlainLines(), flow_run_id="x", only_if_changed=True)
    ledger = open_ledger("tiny")
    return report, ledger.client.get_run(report.mlflow_run_id).data.tags


def test_nothing_changed_is_said_and_kept(config: Config) -> None:
    since = measured(config)
    report, tags = tonight(config)
    state = report.state()
    assert (report.verdict, report.exit_status, state.type.value) == ("UNCHANGED", 0, "COMPLETED")
    assert (
        state.message.startswith(f"nothing changed since run {since} (yesterday, PASS): data ") and "no server is watched" in state.message
    )
    assert (tags["draftproof.unchanged_since"], tags["mlflow.note.content"]) == (since, report.message)


def test_what_is_new_is_said_and_the_run_is_made(config: Config, tmp_path: Path) -> None:
    measured(config)
    prompts_jsonl(tmp_path / "chats" / "dropped.jsonl")
    report, tags = tonight(config)
    assert report.kind == "bad-input" and "capture.boundaries" in report.message
    assert tags["draftproof.because"].startswith("new since run ") and ": data " in tags["draftproof.because"]


def test_another_configuration_is_something_new(config: Config) -> None:
    measured(config.model_copy(update={"seed": 1}))
    report, tags = tonight(config)
    assert report.kind == "bad-input" and "configuration and versions" in tags["draftproof.because"]


def test_a_fall_that_was_seen_since_is_something_new(config: Config) -> None:
    ledger = open_ledger("tiny")
    curve = ServerCurve.of(ledger, "http://127.0.0.1:1", "champion")
    curve.fell(Fall(fallen=True, message="acceptance 1.2, it was 1.9"))
    measured(config)
    news = News.of(ledger, config, store=Store(), report=Silent())
    assert not news.anything and news.message.endswith("acceptance: no lasting fall seen since then")
    curve.fell(Fall(fallen=True, message="acceptance 1.2, it was 1.9"))
    news = News.of(ledger, config, store=Store(), report=Silent())
    assert news.anything and news.message.endswith("): acceptance 1.2, it was 1.9")


@pytest.mark.parametrize("verdict", ["INVALID", "ERROR"])
def test_a_run_that_answered_nothing_is_made_again(config: Config, verdict: str) -> None:
    measured(config, verdict)
    report, tags = tonight(config)
    assert report.kind == "bad-input" and tags["draftproof.because"] == "no drafter was measured yet"


def test_a_stage_to_be_done_again_is_a_reason(config: Config) -> None:
    measured(config)
    report, _ = tonight(config, refresh=["train"])
    assert report.kind == "bad-input"


def test_a_folder_without_conversations_is_named_by_the_run(config: Config, tmp_path: Path) -> None:
    measured(config)
    (tmp_path / "chats" / "first.jsonl").unlink()
    fitting = {"train": {"draft_vocab_size": 64}, "data": {"prompts": config.data.prompts, "prompt_tokens": 32, "answer_tokens": 32}}
    report, _ = tonight(Config.model_validate({"target": config.target, "capture": {"boundaries": [0, 2, 4]}, **fitting, **SMALL}))
    assert (report.exit_status, report.stage) == (2, "data") and "no *.jsonl" in report.message, report


def test_one_run_at_a_time_has_the_machine(config: Config) -> None:
    listener = Listener()
    with ThreadPoolExecutor() as threads:
        with machine(print):
            other = threads.submit(run_pipeline, config, refresh=[], watcher=listener, flow_run_id="x")
            while not any("another run has the machine" in told[-1] for told in listener.told):
                assert not other.done()
                time.sleep(0.05)
        assert other.result(60).kind == "bad-input"
