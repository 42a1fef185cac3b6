"""`make up`, a deployment run as it is typed, `make down`: the real Prefect server, worker and MLflow server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from mlflow import MlflowClient
from pydantic import BaseModel

from flows import benchmark_drafter, train_verify_deploy, verify_drafter, watch_acceptance
from tasks.deploy.ports import free_port
from tests.processes import processes_of
from tests.security.canary import beyond_this_machine, listening
from tests.servers.browser import BROWSER, chromium
from tests.tiny import prompts_jsonl

pytestmark = pytest.mark.servers
PROJECT = Path(__file__).resolve().parents[2]
PREFECT = Path(sys.executable).with_name("prefect")
FORMS = {
    "train-verify-deploy/nightly": train_verify_deploy.Parameters,
    "verify-drafter/default": verify_drafter.Parameters,
    "benchmark-drafter/default": benchmark_drafter.Parameters,
    "watch-acceptance/default": watch_acceptance.Parameters,
}


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Everything started, with a home and a Prefect home of its own."""
    home, user = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("user")
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "MLFLOW_"))}
    environment = {**inherited, "DRAFTPROOF_HOME": str(home), "PREFECT_HOME": str(user)}
    ports = {"prefect": free_port("127.0.0.1"), "mlflow": free_port("127.0.0.1")}

    def services(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "infra/services.py", *words]
        return subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=400, check=False)

    started = services("up", "--prefect-port", str(ports["prefect"]), "--mlflow-port", str(ports["mlflow"]))
    try:
        assert started.returncode == 0, started.stdout + started.stderr
        yield {"home": home, "environment": environment, "services": services, "ports": ports}
    finally:
        ended = services("down")
    assert ended.returncode == 0, ended.stderr
    assert processes_of(home) == []
    assert "active" not in (user / "profiles.toml").read_text()


def test_a_second_up_starts_nothing_twice(up: dict[str, Any]) -> None:
    again = up["services"]("up", "--prefect-port", str(up["ports"]["prefect"]), "--mlflow-port", str(up["ports"]["mlflow"]))
    assert again.returncode == 0 and again.stdout.count("runs already") == 3, again.stdout + again.stderr


def test_a_deployment_runs_as_typed_from_any_folder(up: dict[str, Any], fitted_draft: Path, fitted_target: Path, tmp_path: Path) -> None:
    prompts = prompts_jsonl(tmp_path / "prompts.jsonl")
    parameters = json.dumps({"checkpoint": str(fitted_draft), "target": str(fitted_target), "prompts": str(prompts)})
    command = [str(PREFECT), "deployment", "run", "verify-drafter/default", "-p", f"parameters={parameters}", "--watch"]
    done = subprocess.run(command, cwd=tmp_path, env=up["environment"], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Completed" in done.stdout
    client = MlflowClient(f"http://127.0.0.1:{up['ports']['mlflow']}")
    experiment = client.get_experiment_by_name(f"draftproof/{fitted_target.name}".lower())
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.data.tags["draftproof.verdict"] == "PASS" and run.info.status == "FINISHED"
    page = f"{client.tracking_uri}/#/experiments/{experiment.experiment_id}/runs/{run.info.run_id}"
    asked = {"artifacts": {"key": {"any_": ["mlflow-run"]}}}
    (link,) = httpx.post(f"http://127.0.0.1:{up['ports']['prefect']}/api/artifacts/filter", json=asked).raise_for_status().json()
    assert page in link["data"]


def test_everything_listens_on_this_machine_only(up: dict[str, Any]) -> None:
    services = [psutil.Process(json.loads(path.read_text())["process"]["pid"]) for path in up["home"].glob("services/*.json")]
    sockets = listening(child for service in services for child in (service, *service.children(recursive=True)))
    assert {f"127.0.0.1:{port}" for port in up["ports"].values()} <= sockets
    assert beyond_this_machine(sockets) == []


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on PATH: Debian's package is `chromium`")
@pytest.mark.parametrize(("name", "parameters"), FORMS.items())
def test_the_form_of_a_deployment_is_typed_and_explained(
    name: str, parameters: type[BaseModel], up: dict[str, Any], tmp_path: Path
) -> None:
    """Prefect's own page for a custom run, as a browser draws it: each parameter has its help and something to fill in."""
    server = f"http://127.0.0.1:{up['ports']['prefect']}"
    deployment = httpx.get(f"{server}/api/deployments/name/{name}").raise_for_status().json()["id"]
    with chromium(tmp_path / "profile") as page:
        page.open(f"{server}/v2/deployments/deployment/{deployment}/run")
        helps = [field.description for field in parameters.model_fields.values() if field.description]
        for text in helps:
            page.until(f"document.body.innerText.includes({json.dumps(text)})")
        # One that may be null is a choice of tabs, a list is a button that adds an item.
        kinds = "input, textarea, [role=combobox], [role=switch], [role=tablist], button:has(.lucide-plus)"
        page.until(f"document.querySelectorAll('form :is({kinds})').length >= {len(parameters.model_fields)}")
