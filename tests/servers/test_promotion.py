"""Part 4's "done when", with real servers: who becomes champion, who does not and why, and that the history shows all of them.

One ledger, one cache: a weak first champion, a better drafter, one as weak as the first, and one with a fault planted in each
of three stages. The faults are planted in the code that runs, not in what it wrote, so that only the proof can find them.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from flows.outcome import RunReport
from flows.progress import last_report
from flows.train_verify_deploy import Parameters, train_verify_deploy
from tasks.config import Config
from tasks.ledger.store import connect
from tests.tiny import fitted_llama, prompts_jsonl

pytestmark = pytest.mark.servers

MODEL = "tiny-grammar-eagle3"
GATE = "no worse than the champion"
WEAK, SECOND_WEAK, STRONG, SECOND_STRONG = ({"epochs": e, "lr": lr} for e, lr in ((2, 3e-3), (2, 2e-3), (30, 3e-3), (30, 2e-3)))


@dataclass(frozen=True)
class Ended:
    """A run, and the aliases after it."""

    report: RunReport
    champion: str
    challenger: str | None


def config(folder: Path, train: dict[str, Any]) -> Config:
    return Config.model_validate(
        {
            "target": {"source": str(folder / "target"), "name": "tiny-grammar"},
            "data": {
                "prompts": str(folder / "prompts.jsonl"),
                "conversations": 72,
                "held_out": 0.15,
                "prompt_tokens": 32,
                "answer_tokens": 48,
                "batch": 24,
            },
            "capture": {"boundaries": [0, 2, 4], "dtype": "float32"},
            "train": {"draft_vocab_size": 64, "tokens_per_batch": 512, "dtype": "float32", **train},
            "deploy": {"context_length": 256, "max_total_tokens": 1024, "max_running_requests": 2},
            "benchmark": {"prompts": 6, "output_tokens": 40, "steps": [2], "warmup_prompts": 1, "explore_prompts": 2, "max_noise": 100},
            # On a target this small the server's own overhead decides about the speed-up; it is the same on both drafters.
            "promote": {"min_speedup": 0.01},
        }
    )


class Shifted:
    """The second path with the same misreading of layer numbers: capture's own check has nothing to find."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def features(self, tokens: Any, boundaries: Any) -> Any:
        return self._real.features(tokens, [*(b + 1 for b in boundaries[:-1]), boundaries[-1]])


def wrong_boundaries(patch: pytest.MonkeyPatch) -> None:
    """Capture: features of the next boundaries under the names of those that were asked for."""
    from flows.chain import open_reference, open_tap
    from tasks.capture import resolve_boundaries

    def tap(asked: Any, target: Any) -> Any:
        return open_tap(asked.model_copy(update={"boundaries": [b + 1 for b in resolve_boundaries(asked, target)]}), target)

    patch.setattr("flows.chain.open_tap", tap)
    patch.setattr("flows.chain.open_reference", lambda *args, **more: Shifted(open_reference(*args, **more)))


def wrong_rope(patch: pytest.MonkeyPatch) -> None:
    """Export: another theta than the drafter was trained with."""
    from tasks.wiring.rope import as_config

    patch.setattr("tasks.export.convert.as_config", lambda rope: as_config(rope.model_copy(update={"theta": 5e5})))


def wrong_flag(patch: pytest.MonkeyPatch) -> None:
    """Deploy: a flag further back in the command that overrides what was asked for."""
    from tasks.deploy.launch import _arguments

    def overridden(flags: dict[str, Any]) -> list[str]:
        return [*_arguments(flags), *(["--speculative-num-steps", "1"] if flags["speculative_algorithm"] else [])]

    patch.setattr("tasks.deploy.launch._arguments", overridden)


def no_room(patch: pytest.MonkeyPatch) -> None:
    """Not a fault: a machine with memory for two servers."""
    patch.setattr("flows.champion.has_room_for_server", lambda config: False)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Ended]]:
    from prefect.testing.utilities import prefect_test_harness

    folder = tmp_path_factory.mktemp("promotion")
    fitted_llama(folder / "target")
    prompts_jsonl(folder / "prompts.jsonl")

    def run(train: dict[str, Any], plant: Callable[[pytest.MonkeyPatch], None] | None = None, *refresh: str) -> Ended:
        began = time.monotonic()
        with pytest.MonkeyPatch.context() as planted:
            if plant:
                plant(planted)
            train_verify_deploy(Parameters(config=config(folder, train), refresh=list(refresh)), return_state=True)
        report = last_report.get()
        assert report is not None
        told = f"{plant.__name__ if plant else 'sound'}, {train}: {report.verdict} {report.kind} in {report.stage}"
        sys.stdout.write(f"\n{told}, {time.monotonic() - began:.0f} s: {report.message}\n")  # for who runs pytest with -s
        client = connect()
        # A SQLite store gives numbers, MLflow's server texts.
        aliases = {alias: str(version) for alias, version in client.get_registered_model(MODEL).aliases.items()}
        return Ended(report, aliases["champion"], aliases.get("challenger"))

    with pytest.MonkeyPatch.context() as patch, prefect_test_harness(server_startup_timeout=180):
        patch.setenv("DRAFTPROOF_HOME", str(folder / "home"))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        yield {
            "weak": run(WEAK),
            "strong": run(STRONG),
            "worse": run(SECOND_WEAK, no_room),
            "launch": run(SECOND_STRONG, wrong_flag),
            "export": run(SECOND_STRONG, wrong_rope, "export"),
            "capture": run(SECOND_STRONG, wrong_boundaries, "data", "capture"),
        }


@pytest.fixture
def home(runs: dict[str, Ended], tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """That of the runs, instead of a test's own."""
    drafter = runs["strong"].report.drafter
    assert drafter is not None
    home = drafter.parents[2]
    monkeypatch.setenv("DRAFTPROOF_HOME", str(home))
    return home


def gate(ended: Ended) -> Any:
    return next(check for check in ended.report.checks if check.name == GATE)


def test_the_first_has_nobody_to_beat(runs: dict[str, Ended]) -> None:
    assert runs["weak"].report.exit_status == 0, runs["weak"].report.message
    assert runs["weak"].champion == "1"
    assert "none yet" in gate(runs["weak"]).message
    assert "bench.champion_tok_s" not in runs["weak"].report.metrics


def test_a_better_one_is_promoted_over_a_worse_champion(runs: dict[str, Ended]) -> None:
    strong = runs["strong"]
    assert strong.report.exit_status == 0, strong.report.message
    assert strong.champion == "2"
    metrics = strong.report.metrics
    assert metrics["bench.over_champion_low"] > 1, "it is better beyond noise"
    assert metrics["bench.accept_length"] > metrics["bench.champion_accept_length"]
    assert metrics["bench.champion_accept_length"] == pytest.approx(runs["weak"].report.metrics["bench.accept_length"], rel=0.02)
    assert "(version 1, 2 steps)" in gate(strong).message


def test_a_worse_one_is_refused_by_the_gate_alone(runs: dict[str, Ended]) -> None:
    worse = runs["worse"]
    assert (worse.report.verdict, worse.report.kind, worse.report.stage) == ("FAIL", "worse-than-champion", "promote"), worse.report
    assert worse.report.metrics["bench.over_champion_high"] < 1
    failed = [check.name for check in worse.report.checks if check.verdict not in ("PASS", "WARN")]
    assert failed == [GATE]
    assert (worse.champion, worse.challenger) == ("2", "3")


@pytest.mark.parametrize(
    ("planted", "kind", "stages"),
    [
        ("capture", "layer-boundaries", {"verify"}),
        ("export", "rope", {"export", "verify"}),
        ("launch", "launch-flags", {"deploy"}),
    ],
)
def test_a_planted_fault_is_named_and_stays_out_of_champion(planted: str, kind: str, stages: set[str], runs: dict[str, Ended]) -> None:
    ended = runs[planted]
    assert (ended.report.verdict, ended.report.kind) == ("FAIL", kind), ended.report.message
    assert ended.report.stage in stages
    assert ended.champion == "2"


def test_the_registry_says_why(runs: dict[str, Ended], home: Path) -> None:
    client = connect()
    for name, version in (("worse", "3"), ("launch", "4")):
        tags = client.get_model_version(MODEL, version).tags
        assert (tags["draftproof.kind"], tags["draftproof.reason"]) == (runs[name].report.kind, runs[name].report.message)
    champion = client.get_model_version_by_alias(MODEL, "champion")
    assert champion.run_id == runs["strong"].report.mlflow_run_id and champion.tags["draftproof.previous_champion"] == "1"


def test_the_model_carries_its_data(runs: dict[str, Ended], home: Path) -> None:
    client = connect()
    inputs = client.get_run(runs["strong"].report.mlflow_run_id).inputs.dataset_inputs
    found = {i.dataset.name: json.loads(i.dataset.source) for i in inputs}
    assert set(found) == {"conversations", "benchmark prompts"}
    assert all(Path(source["uri"]).is_file() and len(source["sha256"]) == 64 for source in found.values())
    source = client.get_model_version_by_alias(MODEL, "champion").source
    metrics = client.get_logged_model(source.removeprefix("models:/")).metrics
    on = {metric.key: metric.dataset_name for metric in metrics}
    assert (on["train.accuracy_step0"], on["bench.speedup"]) == ("conversations", "benchmark prompts")


def test_the_history_page_shows_all_of_them(runs: dict[str, Ended], home: Path) -> None:
    client = connect()
    last = runs["capture"].report.mlflow_run_id
    page = unescape(Path(client.download_artifacts(last, "history.html", str(home))).read_text(encoding="utf-8"))
    for ended in runs.values():
        run = client.get_run(ended.report.mlflow_run_id)
        assert run.info.run_name in page
        assert (ended.report.kind or ended.report.verdict) in page
