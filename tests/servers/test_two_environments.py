"""Two workers in two virtual environments: one trains and has no SGLang, the other serves and has no speculators.

The real Prefect server, MLflow server and SGLang, on the tiny target. Both environments come from requirements.lock, each
without what is the other's; each side has a home of its own, so that what passes between them passes through MLflow.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml
from mlflow import MlflowClient

from tasks.deploy.ports import free_port
from tasks.processes import family
from tests.processes import processes_of
from tests.servers.operating import ask
from tests.tiny import pipeline_config

pytestmark = pytest.mark.servers

PROJECT = Path(__file__).resolve().parents[2]
UV = Path(sys.executable).with_name("uv")
MODEL = "tiny-grammar-eagle3"
STAGES = ["environment", "target", "data", "capture", "train", "export", "verify", "deploy", "benchmark", "promote"]
WITHOUT = {"training": {"sglang"}, "serving": {"speculators"}}


@dataclass
class Sides:
    """Both environments at work."""

    folder: Path
    python: dict[str, Path]
    environment: dict[str, str]
    """Of the side that trains."""
    prefect: str
    mlflow: str

    @property
    def there(self) -> dict[str, str]:
        """The environment of the side that serves."""
        addresses = {"PREFECT_API_URL": self.prefect, "MLFLOW_TRACKING_URI": self.mlflow, "DRAFTPROOF_HOME": str(self.home("serving"))}
        return {**{name: value for name, value in self.environment.items() if name != "PREFECT_HOME"}, **addresses}

    @property
    def client(self) -> MlflowClient:
        return MlflowClient(self.mlflow)

    def home(self, side: str) -> Path:
        return self.folder / f"home-{side}"

    def started(self, *overrides: str) -> subprocess.Popen[str]:
        """A run of the deployment, as typed and watched."""
        parameters = {"config_file": str(self.folder / "tiny.yaml"), "overrides": overrides}
        command = [str(self.python["training"].with_name("prefect")), "deployment", "run", "train-verify-deploy/demo"]
        command += ["-p", f"parameters={json.dumps(parameters)}", "--watch"]
        return subprocess.Popen(command, cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def run(self, *overrides: str) -> str:
        """A whole one; what Prefect told of it."""
        return self.started(*overrides).communicate(timeout=460)[0]

    def newest(self) -> tuple[Any, dict[str, Any]]:
        """The newest pipeline run, and its stages' runs by name."""
        experiment = self.client.get_experiment_by_name("draftproof/tiny-grammar")
        found = self.client.search_runs([experiment.experiment_id], order_by=["attributes.start_time DESC"])
        parent = next(run for run in found if "mlflow.parentRunId" not in run.data.tags)
        return parent, {run.info.run_name: run for run in found if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id}

    def artifact(self, run: Any, name: str) -> Any:
        return json.loads(Path(self.client.download_artifacts(run.info.run_id, name, str(self.folder))).read_text())

    def log(self, side: str) -> str:
        return "\n".join(path.read_text(errors="replace")[-6000:] for path in self.folder.rglob(f"{side}.log"))


def uv(*words: object) -> None:
    done = subprocess.run([str(UV), *map(str, words)], cwd=PROJECT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr


def locked_without(names: set[str]) -> str:
    """requirements.lock without some packages: each begins a line that goes on in indented ones."""
    packages = re.split(r"^(?=[A-Za-z0-9])", (PROJECT / "requirements.lock").read_text(), flags=re.MULTILINE)
    kept = [package for package in packages if package.partition("==")[0] not in names]
    assert len(packages) - len(kept) == len(names)
    return "".join(kept)


def install(side: str, folder: Path) -> Path:
    """The environment's interpreter; called again, it puts right what a test took away."""
    python = folder / f"venv-{side}" / "bin" / "python"
    if not python.exists():
        uv("venv", "--quiet", "--python", sys.executable, python.parent.parent)
        (folder / f"{side}.lock").write_text(locked_without(WITHOUT[side]))
    uv("pip", "sync", "--quiet", "--python", python, "--require-hashes", folder / f"{side}.lock")
    ours = ["-e", PROJECT] + (["-e", PROJECT / "infra/sglang_plugins"] if side == "serving" else [])
    uv("pip", "install", "--quiet", "--python", python, "--no-deps", "--no-build-isolation", *ours)
    return python


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sides]:
    folder = tmp_path_factory.mktemp("sides")
    python = {side: install(side, folder) for side in WITHOUT}
    config = pipeline_config(folder)
    (folder / "tiny.yaml").write_text(yaml.safe_dump({**config, "serving": {"pool": "draftproof-serving"}}))
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "MLFLOW_"))}
    ports = {"prefect": free_port("127.0.0.1"), "mlflow": free_port("127.0.0.1")}
    made = Sides(
        folder,
        python,
        {**inherited, "DRAFTPROOF_HOME": str(folder / "home-training"), "PREFECT_HOME": str(folder / "user")},
        f"http://127.0.0.1:{ports['prefect']}/api",
        f"http://127.0.0.1:{ports['mlflow']}",
    )

    def services(*words: str) -> None:
        command = [str(python["training"]), "infra/services.py", *words]
        done = subprocess.run(command, cwd=PROJECT, env=made.environment, capture_output=True, text=True, timeout=400, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    try:
        services("up", "--prefect-port", str(ports["prefect"]), "--mlflow-port", str(ports["mlflow"]))
        with serving_worker(made):
            yield made
    finally:
        draftproof_there(made, "deploy", MODEL, "--stop", check=False)
        services("down")
    assert processes_of(made.home("training")) == processes_of(made.home("serving")) == []


@contextmanager
def serving_worker(made: Sides) -> Iterator[None]:
    """`make serve` as it is in that environment, until it has told Prefect that it lives."""
    log = made.folder / "serving.log"
    with log.open("wb") as output:
        command = [str(made.python["serving"]), str(PROJECT / "infra/services.py"), "serve"]
        worker = subprocess.Popen(command, cwd=made.folder, env=made.there, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + 180
        while not workers(made):
            assert worker.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.5)
        yield
    finally:
        worker.send_signal(signal.SIGINT)
        worker.wait(60)


def draftproof_there(sides: Sides, *words: str, check: bool = True) -> None:
    """A command as typed on the machine that serves."""
    command = [str(sides.python["serving"]), "-m", "flows.cli", *words]
    done = subprocess.run(command, cwd=PROJECT, env=sides.there, capture_output=True, text=True, timeout=400, check=False)
    assert not check or done.returncode == 0, done.stdout + done.stderr


def kept(made: Sides) -> str:
    """The address that the serving side's kept server has now, which answers as the target does."""
    url = (made.home("serving") / "served" / f"{MODEL}.url").read_text()
    assert ask(url)
    return url


def workers(made: Sides) -> list[dict[str, Any]]:
    found = httpx.post(f"{made.prefect}/work_pools/draftproof-serving/workers/filter", json={}, trust_env=False)
    return found.json() if found.status_code == httpx.codes.OK else []


def flow_runs(made: Sides) -> list[dict[str, Any]]:
    """Those that the serving side was asked for."""
    asked = {"flows": {"name": {"any_": ["serving-stage"]}}, "sort": "START_TIME_ASC"}
    found: list[dict[str, Any]] = httpx.post(f"{made.prefect}/flow_runs/filter", json=asked, trust_env=False).raise_for_status().json()
    return found


@pytest.fixture(scope="module")
def passed(sides: Sides) -> tuple[Any, dict[str, Any]]:
    """A whole run, up to the promotion."""
    told = sides.run()
    assert "Completed" in told, told[-3000:] + sides.log("serving") + sides.log("worker")
    return sides.newest()


def test_the_environments_are_two(sides: Sides) -> None:
    for side, (there, not_there) in {"training": ("speculators", "sglang"), "serving": ("sglang", "speculators")}.items():
        asked = f"import importlib.util as u; print(bool(u.find_spec({there!r})), bool(u.find_spec({not_there!r})))"
        done = subprocess.run([str(sides.python[side]), "-c", asked], capture_output=True, text=True, check=True)
        assert done.stdout == "True False\n"


def test_the_run_tells_the_same_story_as_one_in_one_place(sides: Sides, passed: tuple[Any, dict[str, Any]]) -> None:
    parent, stages = passed
    assert parent.info.status == "FINISHED" and parent.data.tags["draftproof.verdict"] in ("PASS", "WARN")
    assert sorted(stages) == sorted(STAGES) and {run.info.status for run in stages.values()} == {"FINISHED"}
    metrics = parent.data.metrics
    assert metrics["bench.accept_length"] == pytest.approx(metrics["verify.accept_length"], rel=0.05)
    assert metrics["bench.speedup_low"] <= metrics["bench.speedup"] <= metrics["bench.speedup_high"]
    verdict = sides.artifact(parent, "verdict.json")
    assert verdict["metrics"].keys() >= {"train.accuracy_step0", "verify.max_logit_diff", "bench.baseline_tok_s", "bench.spec_tok_s"}
    by_stage = {check["stage"] for check in verdict["checks"]}
    assert by_stage >= {"environment", "capture", "train", "export", "verify", "deploy", "benchmark"}
    assert any(check["name"].startswith("served features") for check in verdict["checks"])
    launches = {Path(file.path).name for file in sides.client.list_artifacts(stages["benchmark"].info.run_id, "launch")}
    assert {"plain.json", "speculative-2-steps.json"} <= launches
    logs = {Path(file.path).name for file in sides.client.list_artifacts(parent.info.run_id, "servers")}
    assert {"plain.log", "probed.log"} <= logs
    assert sides.client.get_model_version_by_alias(MODEL, "champion").run_id == parent.info.run_id


def test_each_stage_ran_where_it_belongs(sides: Sides, passed: tuple[Any, dict[str, Any]]) -> None:
    parent, stages = passed
    asked = [run for run in flow_runs(sides) if run["name"].endswith(parent.info.run_id[:8])]
    assert [run["name"].partition(" ")[0] for run in asked] == ["environment", "deploy", "benchmark"]
    assert {(run["work_pool_name"], run["state_type"]) for run in asked} == {("draftproof-serving", "COMPLETED")}
    assert all(run["parent_task_run_id"] for run in asked), "subflows of the run that asked"
    training = sides.artifact(stages["environment"], "environment.json")["interpreters"]
    serving = sides.artifact(stages["environment"], "environment-serving.json")["interpreters"]
    assert [(each["process"], Path(each["executable"]).parent) for each in training] == [("pipeline", sides.python["training"].parent)]
    assert [each["process"] for each in serving] == ["worker", "serving"]
    assert {Path(each["executable"]).parent for each in serving} == {sides.python["serving"].parent}
    assert (training[0]["versions"]["sglang"], serving[0]["versions"]["speculators"]) == (None, None)
    command = sides.artifact(stages["benchmark"], "launch/plain.json")["command"]
    assert Path(command[0]).parent == sides.python["serving"].parent
    assert not (sides.home("training") / "runs" / parent.info.run_id).exists(), "no server ran there"


def test_what_was_served_is_what_was_exported(sides: Sides, passed: tuple[Any, dict[str, Any]]) -> None:
    parent, _ = passed
    order = sides.artifact(parent, "handover/deploy-order.json")
    (arrived,) = (sides.home("serving") / "cache" / "arrived").glob("*/drafter")
    exported = Path(sides.artifact(parent, "verdict.json")["drafter"])
    assert exported.is_relative_to(sides.home("training"))
    assert set(order["drafter"]) == {path.name for path in arrived.iterdir()}
    assert all((arrived / name).read_bytes() == (exported / name).read_bytes() for name in order["drafter"])


@contextmanager
def another_version(sides: Sides, name: str) -> Iterator[str]:
    """The serving side's package calls itself another version. Its file is replaced: its bytes are uv's cache's too."""
    (metadata,) = sides.python["serving"].parent.parent.glob(f"lib/python3*/site-packages/{name}-*.dist-info/METADATA")
    text = metadata.read_text()
    metadata.unlink()
    metadata.write_text(re.sub(r"^Version: .*$", "Version: 0.0.1", text, count=1, flags=re.MULTILINE))
    yield re.search(r"^Version: (.*)$", text, re.MULTILINE)[1]  # type: ignore[index]
    metadata.unlink()
    metadata.write_text(text)


@contextmanager
def without(sides: Sides, side: str, name: str) -> Iterator[str]:
    uv("pip", "uninstall", "--quiet", "--python", sides.python[side], name)
    yield name
    install(side, sides.folder)


def refused(sides: Sides) -> str:
    """What a run says that ends in its environment stage."""
    told = sides.run()
    assert "Failed" in told, told[-3000:]
    parent, stages = sides.newest()
    assert set(stages) == {"environment"}, "found before training starts"
    assert (parent.data.tags["draftproof.verdict"], parent.data.tags["draftproof.kind"]) == ("FAIL", "environment")
    message: str = sides.artifact(parent, "verdict.json")["message"]
    return message


def test_a_package_that_the_serving_side_lacks(sides: Sides) -> None:
    with without(sides, "serving", "sglang"):
        message = refused(sides)
    assert message.startswith("serving side: stage deploy cannot have sglang.srt.server_args (no module named 'sglang')")
    assert str(sides.python["serving"].parent) in message and "install draftproof[serve]" in message


def test_a_package_that_the_training_side_lacks(sides: Sides) -> None:
    with without(sides, "training", "speculators"):
        message = refused(sides)
    assert message.startswith("stage train cannot have speculators (no module named 'speculators')")
    assert str(sides.python["training"].parent) in message


def test_versions_that_disagree(sides: Sides) -> None:
    with another_version(sides, "safetensors") as ours:
        message = refused(sides)
    assert message.startswith(f"safetensors: {ours} where it is trained, 0.0.1 in the worker that serves")


# Another drafter, which replaces the server that is kept: the champion's speed is not what is tried here.
ANOTHER = ("train.epochs=24", "promote.replace_server=true", "promote.min_over_champion=null", "serving.patience_seconds=20")


def test_a_worker_that_dies_while_it_measures_takes_nothing_with_it(sides: Sides, passed: tuple[Any, dict[str, Any]]) -> None:
    """The run ends with the name of what is missing; the kept server serves on, and the champion stays."""
    draftproof_there(sides, "deploy", f"{MODEL}@champion")
    before = kept(sides)
    with sides.started(*ANOTHER) as run:
        deadline = time.monotonic() + 400
        while not any(asked["name"].startswith("benchmark of") and asked["state_type"] == "RUNNING" for asked in flow_runs(sides)):
            assert run.poll() is None and time.monotonic() < deadline, sides.log("worker")
            time.sleep(0.5)
        (worker,) = [p for p in psutil.process_iter(["cmdline"]) if _is_serving_worker(p, sides)]
        for process in family(worker.pid):
            process.signal(signal.SIGKILL)
        told = run.communicate(timeout=300)[0]
    assert "Crashed" in told, told[-3000:]
    parent, _ = sides.newest()
    assert (parent.data.tags["draftproof.kind"], parent.data.tags["draftproof.stage"]) == ("machine-trouble", "benchmark")
    assert "work pool 'draftproof-serving'" in sides.artifact(parent, "verdict.json")["message"]
    assert kept(sides) == before and sides.client.get_model_version_by_alias(MODEL, "champion").version == "1"


def _is_serving_worker(process: psutil.Process, sides: Sides) -> bool:
    words = process.info["cmdline"] or []
    return "worker" in words and "draftproof-serving" in words and str(sides.python["serving"].parent) in " ".join(words)


def test_the_new_champion_takes_over_there(sides: Sides, passed: tuple[Any, dict[str, Any]]) -> None:
    before = kept(sides)
    with serving_worker(sides):
        told = sides.run(*ANOTHER)
    assert "Completed" in told, told[-3000:] + sides.log("serving")
    parent, _ = sides.newest()
    assert sides.client.get_model_version_by_alias(MODEL, "champion").run_id == parent.info.run_id
    after = kept(sides)
    assert after != before
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{before}/health", trust_env=False)
    checks = {check["name"]: check["message"] for check in sides.artifact(parent, "verdict.json")["checks"]}
    assert checks["the kept server is replaced"] == f"{after} serves version 2"
