"""Automations and the webhook's address in a real Prefect server."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import httpx
import pytest
from prefect.blocks.webhook import Webhook
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.schedules import CronSchedule
from prefect.events.schemas.automations import AutomationCore
from prefect.settings import PREFECT_API_URL, PREFECT_SERVER_DATABASE_CONNECTION_URL

from flows.automations import BLOCK, bring_up_to_date, schedules_kept
from tasks.verdict import MachineTrouble
from tests.security.canary import WORD, files_that_tell

pytestmark = pytest.mark.usefixtures("prefect")
DEAD, LATE, FAILED = "a run that is not heard of any more", "a run that does not begin", "tell of a run that failed"


def on() -> list[str]:
    with get_client(sync_client=True) as client:
        return sorted(automation.name for automation in client.read_automations())


def test_they_follow_the_file_and_the_environment() -> None:
    api = PREFECT_API_URL.value()
    assert bring_up_to_date(api, None) == [DEAD, LATE]
    assert on() == sorted([DEAD, LATE])
    for address in ("http://127.0.0.1:1/first", f"http://127.0.0.1:1/{WORD}"):
        assert bring_up_to_date(api, address) == [DEAD, LATE, FAILED]
        assert on() == sorted([DEAD, LATE, FAILED]), "brought up to date, not made twice"
        assert Webhook.load(BLOCK).url.get_secret_value() == address
    folder = Path(PREFECT_SERVER_DATABASE_CONNECTION_URL.value().removeprefix("sqlite+aiosqlite:///")).parent
    assert list(folder.glob("*.db")) and files_that_tell(folder) == [], "kept encrypted"
    assert bring_up_to_date(api, None) == [DEAD, LATE]
    assert on() == sorted([DEAD, LATE])
    with pytest.raises(ValueError, match="Unable to find block document"):
        Webhook.load(BLOCK)


def test_one_that_is_up_to_date_is_left_alone() -> None:
    """Prefect forgets what an automation waits for when it is updated, be it to the same."""

    def changed() -> dict[str, object]:
        assert bring_up_to_date(PREFECT_API_URL.value(), "http://127.0.0.1:1/told") == [DEAD, LATE, FAILED]
        found = httpx.post(f"{PREFECT_API_URL.value()}/automations/filter", json={}, trust_env=False).raise_for_status().json()
        return {automation["name"]: automation["updated"] for automation in found}

    first = changed()
    assert changed() == first
    with get_client(sync_client=True) as client:
        (dead,) = client.read_automations_by_name(DEAD)
        client.update_automation(
            dead.id,
            AutomationCore.model_validate(
                {**dead.model_dump(include=set(AutomationCore.model_fields), exclude_none=True), "description": "by hand"}
            ),
        )
    again = changed()
    assert again[FAILED] == first[FAILED] and again[DEAD] != first[DEAD]


def test_a_server_that_is_not_there_is_told_without_the_address() -> None:
    with pytest.raises(MachineTrouble, match="ConnectError") as told:
        bring_up_to_date("http://127.0.0.1:1/api", f"http://127.0.0.1:1/{WORD}")
    assert WORD not in str(told.value) and told.value.__cause__ is None


def deployed(active: bool) -> UUID:
    """As `prefect deploy` does it, the first time and every other."""
    with get_client(sync_client=True) as client:
        schedule = DeploymentScheduleCreate(schedule=CronSchedule(cron="0 3 * * *"), active=active)
        return client.create_deployment(client.create_flow_from_name("some-flow"), name="nightly", schedules=[schedule])


def switched(deployment: UUID) -> list[bool]:
    with get_client(sync_client=True) as client:
        return [schedule.active for schedule in client.read_deployment_schedules(deployment)]


def test_a_schedule_that_was_on_is_on_where_deploying_fails() -> None:
    deployment = deployed(True)
    with pytest.raises(RuntimeError), schedules_kept(PREFECT_API_URL.value()):
        deployed(False)
        raise RuntimeError
    assert switched(deployment) == [True]


@pytest.mark.parametrize("on", [True, False])
def test_a_schedule_stays_as_it_was_switched(on: bool) -> None:
    deployment = deployed(on)
    with schedules_kept(PREFECT_API_URL.value()):
        assert deployed(False) == deployment and switched(deployment) == [False]
    assert switched(deployment) == [on]
