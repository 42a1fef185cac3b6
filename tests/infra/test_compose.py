"""infra/compose.yaml is what Compose takes, and says the same as Makefile, lock and the rest of infra/. It is not started here."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from packaging.specifiers import SpecifierSet
from typer.main import get_command

from infra import services

PROJECT = Path(__file__).resolve().parents[2]
FILE = PROJECT / "infra" / "compose.yaml"
COMPOSE: dict[str, Any] = yaml.safe_load(FILE.read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (PROJECT / "infra" / "Dockerfile").read_text()
OURS = {name: service for name, service in SERVICES.items() if "build" in service}


def test_it_is_valid_by_the_compose_specifications_own_schema() -> None:
    """The schema that check-jsonschema carries; nothing is fetched."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(FILE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_everything_is_there() -> None:
    assert set(SERVICES) == {"database", "objects", "mlflow", "prefect", "trainer", "server"}
    assert {name for name, service in SERVICES.items() if service.get("profiles") == ["serving"]} == {"server"}
    for name in ("trainer", "server"):
        (device,) = SERVICES[name]["deploy"]["resources"]["reservations"]["devices"]
        assert device == {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}


def test_nothing_that_is_named_is_missing() -> None:
    for service in SERVICES.values():
        assert set(service.get("depends_on", {})) <= set(SERVICES)
        named = {volume.partition(":")[0] for volume in service.get("volumes", [])}
        assert {name for name in named if not name.startswith("$")} <= set(COMPOSE["volumes"])
    hosts = re.findall(r"(?:@|http://)([a-z]+)[:/]", FILE.read_text())
    assert set(hosts) <= set(SERVICES) and {"database", "objects", "prefect", "mlflow"} <= set(hosts)
    assert {service["build"]["dockerfile"] for service in OURS.values()} == {"infra/Dockerfile"}
    assert all((FILE.parent / service["build"]["context"]).resolve() == PROJECT for service in OURS.values())


def test_ports_are_this_machines_alone_and_those_of_make_up() -> None:
    ports = {port for service in SERVICES.values() for port in service.get("ports", [])}
    defaults = {option.name: option.default for option in get_command(services.app).commands["up"].params}  # type: ignore[attr-defined]
    assert ports == {f"127.0.0.1:{port}:{port}" for port in (defaults["prefect_port"], defaults["mlflow_port"], 30000)}


def test_images_of_others_are_pinned() -> None:
    for name, service in SERVICES.items():
        assert name in OURS or re.search(r":[\w.-]*\d[\w.-]*$", service["image"]), service["image"]


def test_secrets_come_from_the_environment_alone() -> None:
    variables = {f"{name}.{key}": str(value) for name, service in SERVICES.items() for key, value in service.get("environment", {}).items()}
    secret = {key: value for key, value in variables.items() if re.search(r"PASSWORD|SECRET|TOKEN|STORE_URI", key)}
    assert set(secret) == {
        "database.POSTGRES_PASSWORD",
        "objects.MINIO_ROOT_PASSWORD",
        "mlflow.MLFLOW_BACKEND_STORE_URI",
        "mlflow.AWS_SECRET_ACCESS_KEY",
    }
    for key, value in secret.items():
        assert re.search(r"\$\{[A-Z_]+:\?\}", value), f"{key} has to come from the environment, and to be asked for where it is not there"
        told = re.sub(r"\$\{[A-Z_]+:\?\}", "", value)
        assert told in ("", "postgresql://mlflow:@database/mlflow"), key
    commands = " ".join(str(service.get(key, "")) for service in SERVICES.values() for key in ("command", "entrypoint"))
    assert "${" not in commands, "a command line is everybody's to read"


def test_the_image_is_what_make_setup_installs_from_the_lock() -> None:
    assert re.search(r"^RUN make setup PYTHON=python(3\.\d+)$", DOCKERFILE, re.MULTILINE)
    (version,) = set(re.findall(r"^FROM python:(3\.\d+)-|PYTHON=python(3\.\d+)$", DOCKERFILE, re.MULTILINE)[0][:1])
    assert set(re.findall(r"python:?(3\.\d+)", DOCKERFILE)) == {version}
    requires = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert version in SpecifierSet(requires)
    makefile = (PROJECT / "Makefile").read_text()
    assert re.search(r"for p in (\S+)", makefile)[1] == f"python{version}", "the first that `make setup` looks for"  # type: ignore[index]
    assert "--require-hashes requirements.lock" in makefile and "pip install" not in DOCKERFILE
    locked = (PROJECT / "requirements.lock").read_text()
    for package in ("psycopg-binary", "boto3", "mlflow", "prefect", "sglang", "speculators"):
        assert re.search(rf"^{package}==", locked, re.MULTILINE), package


def test_what_is_not_ours_stays_out_of_the_image() -> None:
    assert {".git", ".venv", ".draftproof"} <= set((PROJECT / "infra" / "Dockerfile.dockerignore").read_text().split())


@pytest.mark.parametrize(("service", "command"), [("trainer", "worker"), ("server", "serve")])
def test_workers_are_those_of_infra_services(service: str, command: str) -> None:
    python, script, word = SERVICES[service]["command"]
    assert (python, word) == ("python", command) and (PROJECT / script).is_file()
    done = CliRunner().invoke(get_command(services.app), [word, "--help"])
    assert done.exit_code == 0
    for name in ("PREFECT_API_URL", "MLFLOW_TRACKING_URI"):
        assert name in SERVICES[service]["environment"]


def test_servers_are_started_with_options_that_they_have() -> None:
    """As these versions tell their own options."""
    for service in ("mlflow", "prefect"):
        program, *words = SERVICES[service]["command"]
        names = [word for word in words if not word.startswith("-")]
        subcommand = ["server"] if service == "mlflow" else names[:2]
        told = subprocess.run(
            [str(Path(sys.executable).with_name(program)), *subcommand, "--help"], capture_output=True, text=True, check=True
        )
        for option in (word for word in words if word.startswith("--")):
            assert option in told.stdout, f"{program} has no {option}"
    allowed = SERVICES["mlflow"]["command"][-1].split(",")
    assert {"mlflow:5000", "127.0.0.1:5000"} <= set(allowed)


def test_pools_are_those_of_the_deployments() -> None:
    training = yaml.safe_load((PROJECT / services._DEPLOYMENTS).read_text())["deployments"]
    assert {entry["work_pool"]["name"] for entry in training} == {services._POOL}
