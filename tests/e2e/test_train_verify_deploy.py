"""The whole pipeline once, as a user runs it: the real Prefect, speculators, SGLang and MLflow, on a target that learns in seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.processes import processes_of
from tests.security.canary import CANARIES, WORD, beyond_this_machine, files_that_tell, watched
from tests.tiny import TOPICS, pipeline_config, story

DRAFTPROOF = [sys.executable, "-m", "flows.cli"]
METRICS = [
    *(f"{stage}.accuracy_step{k}" for stage in ("train", "verify") for k in range(3)),
    "verify.max_logit_diff",
    "verify.accept_length",
    "bench.accept_length",
    "bench.baseline_tok_s",
    "bench.spec_tok_s",
    "bench.speedup",
    "bench.speedup_low",
    "bench.speedup_high",
]
TAGS = ["verdict", "kind", "stage", "commit", "flow_run_id", "target_sha256", "prompts_sha256", "setup_sha256", "verify_device"]
STAGES = ["target", "data", "capture", "train", "export", "verify", "deploy", "benchmark", "promote"]


def environment(home: Path) -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "MLFLOW_"))}
    return {**inherited, **CANARIES, "DRAFTPROOF_HOME": str(home)}


def draftproof(home: Path, *arguments: str, timeout: float = 800) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*DRAFTPROOF, *arguments], env=environment(home), capture_output=True, text=True, timeout=timeout, check=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("e2e")
    config = pipeline_config(folder)
    config["deploy"]["api_key_env"] = "SERVING_KEY"
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    home = folder / "home"
    with watched() as seen:
        done = draftproof(home, "run", str(path), "--json", str(folder / "out.json"))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    out = json.loads((folder / "out.json").read_text())
    return {"home": home, "config": path, "stdout": done.stdout, "out": out, "seen": seen, "told": [done.stdout, done.stderr]}


def test_verdict_and_interface(run: dict[str, Any]) -> None:
    out = run["out"]
    assert set(out) >= {"verdict", "kind", "stage", "drafter", "target", "mlflow_run_id", "metrics"}
    assert (out["verdict"], out["kind"]) == ("PASS", None) or (out["verdict"] == "WARN" and out["stage"] != "promote")
    assert {p.name for p in Path(out["drafter"]).iterdir()} >= {"config.json", "model.safetensors", "wiring.json", "probes.safetensors"}
    for word in ("speed-up", "acceptance", out["drafter"], "mlflow"):
        assert word in run["stdout"], run["stdout"][-2000:]


def test_the_numbers_prove_it(run: dict[str, Any]) -> None:
    metrics = run["out"]["metrics"]
    assert metrics["verify.max_logit_diff"] <= 1e-3
    assert metrics["verify.accuracy_step0"] == pytest.approx(metrics["train.accuracy_step0"], abs=0.01)
    assert metrics["train.accuracy_step0"] > 0.5, "the grammar is learnt in seconds"
    assert metrics["bench.accept_length"] == pytest.approx(metrics["verify.accept_length"], rel=0.05)
    assert metrics["bench.speedup_low"] <= metrics["bench.speedup"] <= metrics["bench.speedup_high"]


def test_mlflow_tells_the_story(run: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{run['home']}/mlflow.db")
    parent = client.get_run(run["out"]["mlflow_run_id"])
    assert parent.info.status == "FINISHED"
    assert client.get_experiment(parent.info.experiment_id).name == "draftproof/tiny-grammar"
    assert not [m for m in METRICS if m not in parent.data.metrics]
    assert not [t for t in TAGS if f"draftproof.{t}" not in parent.data.tags]
    children = client.search_runs([parent.info.experiment_id], f"tags.mlflow.parentRunId = '{parent.info.run_id}'")
    assert {c.info.status for c in children} == {"FINISHED"}
    assert not [s for s in STAGES if not any(s in c.info.run_name for c in children)]
    assert len(client.get_metric_history(next(c.info.run_id for c in children if "train" in c.info.run_name), "loss")) > 1
    assert parent.info.run_name and "| |" in parent.data.tags["mlflow.note.content"]
    benchmark = next(c.info.run_id for c in children if c.info.run_name == "benchmark")
    launches = {Path(file.path).name for file in client.list_artifacts(benchmark, "launch")}
    assert launches == {"plain.json", "speculative-2-steps.json", "plain-against-speculative-2-steps.json"}
    differences = json.loads(
        mlflow.artifacts.load_text(client.get_run(benchmark).info.artifact_uri + "/launch/plain-against-speculative-2-steps.json")
    )
    assert differences["speculative_algorithm"] == [None, "EAGLE3"] and "context_length" not in differences
    champion = client.get_model_version_by_alias("tiny-grammar-eagle3", "champion")
    assert champion.run_id == parent.info.run_id and champion.tags["draftproof.steps"] == "2"


def test_a_second_night_finds_nothing_new_until_acceptance_falls(run: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the tags that the run itself left."""
    from flows.changes import News
    from tasks.config import load
    from tasks.ledger import open_ledger
    from tasks.report import Silent
    from tasks.store import Store
    from tasks.watch import Fall
    from tasks.watch.kept import ServerCurve

    monkeypatch.setenv("DRAFTPROOF_HOME", str(run["home"]))
    ledger, config = open_ledger("tiny-grammar"), load(run["config"])
    news = News.of(ledger, config, store=Store(), report=Silent())
    assert not news.anything and news.since == run["out"]["mlflow_run_id"], news.message
    assert news.message.startswith(f"nothing changed since run {news.since}") and "no server is watched" in news.message
    ServerCurve.of(ledger, "http://127.0.0.1:1", "champion").fell(Fall(fallen=True, message="acceptance 1.2, it was 1.9"))
    news = News.of(ledger, config, store=Store(), report=Silent())
    assert news.anything and "acceptance 1.2, it was 1.9" in news.message


def test_champion_answers(run: dict[str, Any]) -> None:
    """`draftproof deploy` serves the champion with the drafter, until `--stop`."""
    started = draftproof(run["home"], "deploy", "tiny-grammar-eagle3@champion")
    try:
        assert started.returncode == 0, started.stdout + started.stderr
        url = next(word for word in started.stdout.split() if word.startswith("http://127.0.0.1:"))
        question = {"messages": [{"role": "user", "content": f"{TOPICS[0]} w12"}], "max_tokens": 30, "temperature": 0, "model": "any"}
        ask = f"{url.rstrip('/')}/v1/chat/completions"
        assert httpx.post(ask, json=question, timeout=60).status_code == 401
        key = {"Authorization": f"Bearer {CANARIES['SERVING_KEY']}"}
        answer = httpx.post(ask, json=question, headers=key, timeout=60).raise_for_status().json()
        assert answer["choices"][0]["message"]["content"].split() == story(TOPICS[0], "w12")[:30]
    finally:
        stopped = draftproof(run["home"], "deploy", "tiny-grammar-eagle3@champion", "--stop")
    assert stopped.returncode == 0, stopped.stderr
    assert processes_of(run["home"]) == []


def test_no_secret_of_the_environment_is_told(run: dict[str, Any]) -> None:
    """After the run and the deployment: logs, ledger, artifacts, Prefect's database, command lines, the terminal."""
    assert [path for path in run["home"].rglob("*") if path.name in ("mlflow.db", "prefect.db")] and list(run["home"].rglob("*.log"))
    assert files_that_tell(run["home"].parent) == []
    assert run["seen"].command_lines == set() and not [text for text in run["told"] if WORD in text]


def test_everything_listened_on_this_machine_only(run: dict[str, Any]) -> None:
    """Prefect's server and three of SGLang's, while the run lasted."""
    assert len(run["seen"].sockets) >= 4
    assert beyond_this_machine(run["seen"].sockets) == []
