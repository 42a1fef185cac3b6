"""infra/prefect.yaml holds what Prefect reads, and names what exists: Prefect ignores unknown keys in silence."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.cli.deploy._models import DeploymentConfig, PrefectYamlModel, WorkPoolConfig
from prefect.events import DeploymentTriggerTypes
from pydantic import BaseModel, TypeAdapter

from flows.watch_acceptance import EVENT
from tasks.config import load

PROJECT = Path(__file__).resolve().parents[2]
FILE: dict[str, Any] = yaml.safe_load((PROJECT / "infra" / "prefect.yaml").read_text())
DEPLOYMENTS = {f"{entry['entrypoint'].rpartition(':')[2].replace('_', '-')}/{entry['name']}": entry for entry in FILE["deployments"]}


def unknown(model: type[BaseModel], given: dict[str, Any]) -> set[str]:
    return set(given) - {field.alias or name for name, field in model.model_fields.items()}


def test_every_key_is_one_that_prefect_reads() -> None:
    assert unknown(PrefectYamlModel, FILE) == set()
    for name, entry in DEPLOYMENTS.items():
        assert (name, unknown(DeploymentConfig, entry)) == (name, set())
        assert (name, unknown(WorkPoolConfig, entry["work_pool"])) == (name, set())


def test_triggers_are_ones_that_prefect_takes() -> None:
    triggers = [trigger for entry in DEPLOYMENTS.values() for trigger in entry.get("triggers", [])]
    assert [TypeAdapter(DeploymentTriggerTypes).validate_python(trigger).expect for trigger in triggers] == [{EVENT}]


def test_the_promised_deployments_are_there() -> None:
    assert set(DEPLOYMENTS) >= {
        "train-verify-deploy/demo",
        "train-verify-deploy/nightly",
        "train-verify-deploy/gpu",
        "verify-drafter/default",
        "benchmark-drafter/default",
        "watch-acceptance/default",
    }


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_flow_parameters_and_config_exist(name: str) -> None:
    entry = DEPLOYMENTS[name]
    path, _, function = entry["entrypoint"].rpartition(":")
    module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
    assert getattr(module, function).name == name.partition("/")[0]
    given = (entry.get("parameters") or {}).get("parameters")
    if given is not None:
        parameters = module.Parameters.model_validate(given)
        if getattr(parameters, "config_file", None):
            load(PROJECT / parameters.config_file)


def test_nothing_runs_by_itself_until_asked_for() -> None:
    assert not [schedule for entry in DEPLOYMENTS.values() for schedule in entry.get("schedules", []) if schedule["active"]]
