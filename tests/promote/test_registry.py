"""The registry on a real MLflow store (SQLite)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tasks.config import DeployConfig, PromoteConfig, TargetConfig
from tasks.ledger import Ledger, open_ledger
from tasks.promote import DataSource, Promotion, Release, find_opponent, find_release, promote, rollback
from tasks.verdict import BadInput, Check, Outcome, ProofFailed, Verdict

PROJECT = Path(__file__).resolve().parents[2]
WEIGHTS = bytes(range(256)) * 40


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        # The default store, that no environment variable names.
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.setenv("DRAFTPROOF_HOME", str(tmp_path_factory.mktemp("home")))
        yield open_ledger("tiny")


def drafter(folder: Path, weights: bytes = WEIGHTS) -> Path:
    (folder / "sub").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "sub" / "note.txt").write_text("in a folder")
    (folder / "product.json").write_text("the store's own")
    (folder / "model.safetensors").write_bytes(weights)
    return folder


def release(folder: Path, model: str, steps: int | None = 3) -> Release:
    return Release(
        model=model,
        drafter=folder,
        target=TargetConfig(source="/somewhere", name="tiny"),
        target_sha256="ab" * 32,
        deploy=DeployConfig(context_length=512),
        steps=steps,
        by_concurrency={1: {"steps": 3, "topk": 1, "draft_tokens": 4}, 8: {"steps": 1, "topk": 1, "draft_tokens": 2}},
        stops_paying=8,
    )


def verdict(outcome: Outcome, kind: str | None = None) -> Verdict:
    return Verdict.of("promote", [Check(name="faster", verdict=outcome, kind=kind, message="the reason")], passed="all passed")


def promoted(ledger: Ledger, made: Release, outcome: Outcome, kind: str | None = None) -> tuple[Promotion, str]:
    with ledger.run("pipeline") as run:
        return promote(ledger.client, experiment=ledger.experiment, run_id=run.id, release=made, verdict=verdict(outcome, kind)), run.id


def aliased(ledger: Ledger, model: str, alias: str) -> str:
    return str(ledger.client.get_model_version_by_alias(model, alias).version)


def test_champion_comes_back_as_it_was(ledger: Ledger, tmp_path: Path) -> None:
    made = release(drafter(tmp_path / "d"), "back-eagle3")
    first, run_id = promoted(ledger, made, Outcome.PASS)
    assert (first.alias, first.previous_champion) == ("champion", None)
    assert ledger.client.get_model_version_by_alias("back-eagle3", "champion").run_id == run_id
    found, promotion = find_release(ledger.client, "back-eagle3")
    assert promotion == first
    assert found.model_copy(update={"drafter": made.drafter}) == made
    files = {str(p.relative_to(found.drafter)): p.read_bytes() for p in found.drafter.rglob("*") if p.is_file()}
    assert files == {"config.json": b"{}", "sub/note.txt": b"in a folder", "model.safetensors": WEIGHTS}


def test_the_figures_of_each_run_are_on_the_model(ledger: Ledger, tmp_path: Path) -> None:
    made = release(drafter(tmp_path / "d"), "figures-eagle3")
    for speedup in (1.2, 1.3):  # the second run uploads nothing
        with ledger.run("pipeline") as run:
            run.log({"bench.speedup": speedup})
            version = promote(
                ledger.client, experiment=ledger.experiment, run_id=run.id, release=made, verdict=verdict(Outcome.PASS)
            ).version
    source = ledger.client.get_model_version("figures-eagle3", version).source
    metrics = ledger.client.get_logged_model(source.removeprefix("models:/")).metrics
    assert sorted((metric.key, metric.value) for metric in metrics) == [("bench.speedup", 1.2), ("bench.speedup", 1.3)]


def test_the_data_is_on_the_run_and_on_the_model_by_path_and_hash(ledger: Ledger, tmp_path: Path) -> None:
    from mlflow.data import get_source

    (tmp_path / "conversations.jsonl").write_text("{}\n")
    data = [
        DataSource(name="conversations", path=tmp_path / "conversations.jsonl", sha256="ab" * 32, use="training"),
        DataSource(name="benchmark prompts", path=tmp_path / "prompts.jsonl", sha256="cd" * 32, use="evaluation"),
    ]
    made = release(drafter(tmp_path / "d"), "data-eagle3").model_copy(update={"data": data})
    for _ in range(2):  # a second run with the same data and files
        with ledger.run("pipeline") as run:
            run.log({"train.accuracy_step0": 0.6, "bench.speedup": 1.2, "verify.accept_length": 2.0})
            version = promote(
                ledger.client, experiment=ledger.experiment, run_id=run.id, release=made, verdict=verdict(Outcome.PASS)
            ).version
        inputs = ledger.client.get_run(run.id).inputs.dataset_inputs
        assert {(i.dataset.name, i.dataset.digest, i.tags[0].value) for i in inputs} == {
            ("conversations", ("ab" * 32)[:36], "training"),
            ("benchmark prompts", ("cd" * 32)[:36], "evaluation"),
        }
        assert {json.loads(i.dataset.source)["sha256"] for i in inputs} == {"ab" * 32, "cd" * 32}
        training = next(i.dataset for i in inputs if i.dataset.name == "conversations")
        assert get_source(training).uri == str(tmp_path / "conversations.jsonl")
    source = ledger.client.get_model_version("data-eagle3", version).source
    metrics = ledger.client.get_logged_model(source.removeprefix("models:/")).metrics
    assert {(metric.key, metric.dataset_name) for metric in metrics} == {
        ("train.accuracy_step0", "conversations"),
        ("bench.speedup", "benchmark prompts"),
        ("verify.accept_length", "benchmark prompts"),
    }


def test_whom_a_candidate_is_measured_against(ledger: Ledger, tmp_path: Path) -> None:
    made = release(drafter(tmp_path / "champion"), "fought-eagle3")
    other = drafter(tmp_path / "other", b"other")

    def found(folder: Path, target: str = made.target_sha256, **config: Any) -> Any:
        return find_opponent(ledger.client, PromoteConfig(**config), "fought-eagle3", drafter=folder, target_sha256=target)

    assert "none yet" in found(other).message
    first, _ = promoted(ledger, made, Outcome.PASS)
    reigning, promotion = found(other)
    assert (promotion, (reigning.drafter / "model.safetensors").read_bytes(), reigning.steps) == (first, WEIGHTS, 3)
    for check, why in (
        (found(made.drafter), "the same drafter"),
        (found(other, target="ff" * 32), "another target"),
        (found(other, min_over_champion=None), "promote.min_over_champion is null"),
    ):
        assert (check.name, check.verdict) == ("no worse than the champion", Outcome.PASS) and why in check.message


def test_a_champion_that_nobody_measured_is_not_replaced(ledger: Ledger, tmp_path: Path) -> None:
    """Another run was promoted, or a rollback made, while this one was measured beside the champion of before."""
    gate = Check(name="no worse than the champion", verdict=Outcome.PASS, message="as fast", numbers={"champion_version": "1"})
    passed = Verdict.of("promote", [gate], passed="all passed")
    for name in ("a", "b"):
        promoted(ledger, release(drafter(tmp_path / name, name.encode()), "changed-meanwhile-eagle3"), Outcome.PASS)
    late = release(drafter(tmp_path / "c", b"c"), "changed-meanwhile-eagle3")
    with ledger.run("pipeline") as run, pytest.raises(ProofFailed, match=r"was version 1 .* is version 2 now") as failed:
        promote(ledger.client, experiment=ledger.experiment, run_id=run.id, release=late, verdict=passed)
    assert (failed.value.verdict.verdict, failed.value.verdict.kind) == (Outcome.INVALID, "invalid-measurement")
    assert aliased(ledger, "changed-meanwhile-eagle3", "champion") == "2"
    assert aliased(ledger, "changed-meanwhile-eagle3", "challenger") == "3"
    gate = gate.model_copy(update={"numbers": {"champion_version": "2"}})
    with ledger.run("pipeline") as run:
        passed = Verdict.of("promote", [gate], passed="all passed")
        made = promote(ledger.client, experiment=ledger.experiment, run_id=run.id, release=late, verdict=passed)
    assert (made.alias, made.previous_champion) == ("champion", "2")


def test_a_failure_leaves_the_champion_as_it_was(ledger: Ledger, tmp_path: Path) -> None:
    champion, _ = promoted(ledger, release(drafter(tmp_path / "a"), "kept-eagle3"), Outcome.PASS)
    worse, _ = promoted(ledger, release(drafter(tmp_path / "b", b"worse"), "kept-eagle3", steps=None), Outcome.FAIL, "not-faster")
    assert (worse.alias, worse.previous_champion) == ("challenger", champion.version)
    assert (aliased(ledger, "kept-eagle3", "champion"), aliased(ledger, "kept-eagle3", "challenger")) == (champion.version, worse.version)
    tags = ledger.client.get_model_version("kept-eagle3", worse.version).tags
    assert (tags["draftproof.reason"], tags["draftproof.kind"]) == ("the reason", "not-faster")
    better, _ = promoted(ledger, release(drafter(tmp_path / "c", b"better"), "kept-eagle3"), Outcome.WARN, "greedy-divergence")
    assert (better.alias, better.previous_champion) == ("champion", champion.version)
    assert aliased(ledger, "kept-eagle3", "champion") == better.version
    assert ledger.client.get_model_version("kept-eagle3", champion.version).status == "READY"


def test_the_same_files_are_uploaded_once(ledger: Ledger, tmp_path: Path) -> None:
    made = release(drafter(tmp_path / "d"), "same-eagle3")
    versions = [promoted(ledger, made, Outcome.PASS)[0].version for _ in range(2)]
    sources = {ledger.client.get_model_version("same-eagle3", version).source for version in versions}
    assert len(set(versions)) == 2 and len(sources) == 1


def test_files_that_were_changed_are_not_served(ledger: Ledger, tmp_path: Path) -> None:
    promoted(ledger, release(drafter(tmp_path / "d"), "changed-eagle3"), Outcome.PASS)
    found, _ = find_release(ledger.client, "changed-eagle3")
    weights = found.drafter / "model.safetensors"
    weights.write_bytes(WEIGHTS[:-1] + b"?")
    with pytest.raises(BadInput, match="other bytes"):
        find_release(ledger.client, "changed-eagle3")


def test_files_that_were_changed_in_the_registry_are_not_served(ledger: Ledger, tmp_path: Path) -> None:
    made, _ = promoted(ledger, release(drafter(tmp_path / "d"), "swapped-eagle3"), Outcome.PASS)
    source = ledger.client.get_model_version("swapped-eagle3", made.version).source
    stored = Path(ledger.client.get_logged_model(source.removeprefix("models:/")).artifact_location)
    (stored / "model.safetensors").write_bytes(b"other weights")
    with pytest.raises(BadInput, match="the promoted"):
        find_release(ledger.client, "swapped-eagle3")


@pytest.mark.parametrize(("model", "alias"), [("unknown-eagle3", "champion"), ("alone-eagle3", "challenger")])
def test_what_was_never_promoted_is_bad_input(ledger: Ledger, tmp_path: Path, model: str, alias: str) -> None:
    promoted(ledger, release(drafter(tmp_path / "d"), "alone-eagle3"), Outcome.PASS)
    with pytest.raises(BadInput, match="no such model or alias"):
        find_release(ledger.client, model, alias)


@pytest.mark.parametrize("name", ["owner/model-eagle3", "a:b", "a@b"])
def test_names_that_the_registry_refuses(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="model"):
        release(tmp_path, name)


def test_rollback_goes_back_one_champion_at_a_time(ledger: Ledger, tmp_path: Path) -> None:
    for i in range(3):
        promoted(ledger, release(drafter(tmp_path / str(i), bytes([i]) * 100), "rolled-eagle3"), Outcome.PASS)
    left, now = rollback(ledger.client, "rolled-eagle3", by="somebody", why="slow on Mondays")
    assert (left.version, now.version) == ("3", "2") and aliased(ledger, "rolled-eagle3", "champion") == "2"
    for version in ("2", "3"):
        note = json.loads(ledger.client.get_model_version("rolled-eagle3", version).tags["draftproof.rolled_back"])
        assert (note["from"], note["to"], note["by"], note["why"]) == ("3", "2", "somebody", "slow on Mondays")
    found, _ = find_release(ledger.client, "rolled-eagle3")
    assert (found.drafter / "model.safetensors").read_bytes() == bytes([1]) * 100
    assert rollback(ledger.client, "rolled-eagle3", by="x", why="")[1].version == "1"
    with pytest.raises(BadInput, match="no champion before it"):
        rollback(ledger.client, "rolled-eagle3", by="x", why="")


def test_nothing_to_roll_back_to(ledger: Ledger, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no champion"):
        rollback(ledger.client, "unknown-eagle3", by="x", why="")
    for i in range(2):
        promoted(ledger, release(drafter(tmp_path / str(i), bytes([i]) * 100), "gone-eagle3"), Outcome.PASS)
    ledger.client.delete_model_version("gone-eagle3", "1")
    with pytest.raises(BadInput, match="deleted"):
        rollback(ledger.client, "gone-eagle3", by="x", why="")
    assert aliased(ledger, "gone-eagle3", "champion") == "2"


RACE = """
import sys
from pathlib import Path
from tasks.ledger import open_ledger
from tests.promote.test_registry import Outcome, drafter, promoted, release
ledger = open_ledger("tiny")
for i in range(3):
    folder = Path(sys.argv[1]) / str(i)
    promoted(ledger, release(drafter(folder, str(folder).encode()), "raced-eagle3"), Outcome.PASS)
"""


def test_promotions_of_two_processes_wait_for_each_other(ledger: Ledger, tmp_path: Path) -> None:
    """Each version names the one before it: none was registered while another was between reading and setting the alias."""
    named = {**os.environ, "MLFLOW_TRACKING_URI": ledger.uri}
    several = [
        subprocess.Popen([sys.executable, "-c", RACE, str(tmp_path / name)], cwd=PROJECT, env=named, stderr=subprocess.PIPE, text=True)
        for name in ("one", "other")
    ]
    errors = [process.communicate(timeout=180)[1] for process in several]
    assert [process.returncode for process in several] == [0, 0], errors
    versions = {int(v.version): v.tags for v in ledger.client.search_model_versions("name = 'raced-eagle3'")}
    assert [versions[n]["draftproof.previous_champion"] for n in range(1, 7)] == ["", "1", "2", "3", "4", "5"]
    assert aliased(ledger, "raced-eagle3", "champion") == "6"
