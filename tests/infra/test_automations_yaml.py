"""infra/automations.yaml holds what Prefect reads, and what its server takes: Prefect ignores unknown keys in silence."""

from __future__ import annotations

import json
from copy import deepcopy
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
import yaml
from prefect.events.actions import ActionTypesOrUnknown, UnknownAction
from prefect.events.schemas.automations import AutomationCore, TriggerTypes
from prefect.server.events.schemas.automations import AutomationCore as ServersOwn
from prefect.server.utilities.user_templates import register_user_template_filters, render_user_template_sync
from prefect.settings.models.flows import FlowsSettings
from pydantic import TypeAdapter

from flows.automations import ADDRESS, BLOCK, FILE, webhook_address, with_block
from flows.pools import FLOW, HEARD
from tasks.verdict import BadInput
from tests.infra.test_prefect_yaml import DEPLOYMENTS, unknown

CONTENT: dict[str, Any] = yaml.safe_load(FILE.read_text())
AUTOMATIONS = {entry["name"]: entry for entry in CONTENT["automations"]}
SOME_ID = str(UUID(int=7))


def test_every_key_is_one_that_prefect_reads() -> None:
    assert set(CONTENT) == {"automations"} and len(AUTOMATIONS) == len(CONTENT["automations"])
    for name, entry in AUTOMATIONS.items():
        assert (name, unknown(AutomationCore, entry)) == (name, set())
        trigger = TypeAdapter(TriggerTypes).validate_python(deepcopy(entry["trigger"]))  # Prefect writes into what it is given
        assert (name, unknown(type(trigger), entry["trigger"])) == (name, set())
        for given in with_block(entry, SOME_ID)["actions"]:
            action = TypeAdapter(ActionTypesOrUnknown).validate_python(given)
            assert not isinstance(action, UnknownAction), given["type"]
            assert (name, unknown(type(action), given)) == (name, set())


@pytest.mark.parametrize("name", AUTOMATIONS)
def test_the_server_takes_it(name: str) -> None:
    """Templates are checked there."""
    ServersOwn.model_validate(deepcopy(with_block(AUTOMATIONS[name], SOME_ID)))


def test_every_deployed_run_is_heard_of_several_times_before_it_counts_as_dead() -> None:
    trigger = AUTOMATIONS["a run that is not heard of any more"]["trigger"]
    variables = {name: entry["work_pool"]["job_variables"]["env"] for name, entry in DEPLOYMENTS.items()}
    for name, given in {**variables, FLOW: HEARD}.items():
        beats = FlowsSettings(heartbeat_frequency=int(given["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"])).heartbeat_frequency
        assert beats is not None and 4 * beats <= trigger["within"], name


def test_the_message_names_the_run_and_the_kind_in_json_whatever_stands_in_it() -> None:
    (payload,) = (action["payload"] for entry in AUTOMATIONS.values() for action in entry["actions"] if "payload" in action)
    register_user_template_filters({"ui_url": lambda run: f"http://127.0.0.1/runs/{run.name}"})
    state = SimpleNamespace(name="Failed", message='FAIL [not-faster] in promote: "0.9" < 1\n& more')
    run = SimpleNamespace(name="brave-owl", state=state)
    text = json.loads(render_user_template_sync(payload, {"flow": SimpleNamespace(name="train-verify-deploy"), "flow_run": run}))
    assert text == {"text": f"train-verify-deploy brave-owl: Failed: {state.message} http://127.0.0.1/runs/brave-owl"}


def test_only_what_needs_the_webhook_goes_without_one() -> None:
    on = [name for name, entry in AUTOMATIONS.items() if with_block(entry, None)]
    assert on == ["a run that is not heard of any more", "a run that does not begin"]
    (action,) = with_block(AUTOMATIONS["tell of a run that failed"], SOME_ID)["actions"]
    assert action["block_document_id"] == SOME_ID and BLOCK not in str(action)


def test_an_address_that_is_none_is_refused_and_not_told() -> None:
    assert webhook_address({}) is webhook_address({ADDRESS: ""}) is None
    assert webhook_address({ADDRESS: "https://hooks.example.com/T0/secret"}) == "https://hooks.example.com/T0/secret"
    for given in ("hooks.example.com/secret", "ftp://hooks.example.com/secret", "http://", "http://[secret"):
        with pytest.raises(BadInput, match=ADDRESS) as told:
            webhook_address({ADDRESS: given})
        assert "secret" not in str(told.value)
