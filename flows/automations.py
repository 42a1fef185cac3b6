"""What Prefect does by itself, in a server that runs: `infra/automations.yaml`, and the schedules that were switched on."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from flows.prefect_api import asked_of_prefect, pass_by_proxies
from tasks.addresses import taken_apart
from tasks.verdict import BadInput

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

ADDRESS = "DRAFTPROOF_WEBHOOK_URL"
"""Variable with the address that is told of failures. Whoever knows it can write there: it goes into a block, and nowhere else."""
FILE = Path(__file__).resolve().parent.parent / "infra" / "automations.yaml"
BLOCK = "draftproof-webhook"


def webhook_address(environment: Mapping[str, str] = os.environ) -> str | None:
    """None where none is named. Raises BadInput, which does not tell what was named."""
    given = environment.get(ADDRESS)
    if not given:
        return None
    try:
        usable = given.startswith(("http://", "https://")) and bool(taken_apart(given).url.partition("://")[2])
    except ValueError:
        usable = False
    if not usable:
        raise BadInput(ADDRESS, found="something else", expected="an address, http://… or https://…", do="Mend it, or unset it.")
    return given


def bring_up_to_date(api: str, address: str | None) -> list[str]:
    """Create or update every automation in the server at `api`; the names of those that are on.

    One that is as the file has it is left alone: an update would forget the runs that it waits to hear of.
    Without an address, what needs it is taken out of the server, and so is the address of an earlier time.
    Raises MachineTrouble with the kind of Prefect's error alone: its text may hold what was sent.
    """
    from prefect.events.schemas.automations import AutomationCore

    made = []
    with _client(api) as client:
        block = _block(client, address)
        for given in yaml.safe_load(FILE.read_text(encoding="utf-8"))["automations"]:
            known = client.read_automations_by_name(given["name"])
            filled = with_block(given, block)
            if filled is None:
                for each in known:
                    client.delete_automation(each.id)
                continue
            automation = AutomationCore.model_validate(filled)
            if not known:
                client.create_automation(automation)
            elif AutomationCore.model_validate(known[0].model_dump(include=set(AutomationCore.model_fields))) != automation:
                client.update_automation(known[0].id, automation)
            made.append(automation.name)
    return made


@contextmanager
def schedules_kept(api: str) -> Iterator[None]:
    """Schedules that were switched on stay on: `prefect deploy`, called inside of it, makes each anew as its file has it.

    That they are on is not lost where it fails halfway. Raises MachineTrouble.
    """
    with _client(api) as client:
        before = {deployment.id: deployment.schedules for deployment in client.read_deployments()}
    try:
        yield
    finally:
        with _client(api) as client:
            for deployment, schedules in before.items():
                on = [each.schedule for each in schedules if each.active]
                for now in client.read_deployment_schedules(deployment) if on else []:
                    # A file with another time at night: what was on stays on with it.
                    if not now.active and (now.schedule in on or len(on) == len(schedules)):
                        client.update_deployment_schedule(deployment, now.id, active=True)


def with_block(given: Mapping[str, Any], block: str | None) -> dict[str, Any] | None:
    """An automation of the file with the block's id in place of its name; None where it needs a block and there is none."""
    needs = [action.get("block_document_id") == BLOCK for action in given["actions"]]
    if any(needs) and block is None:
        return None
    actions = [{**action, "block_document_id": block} if need else action for action, need in zip(given["actions"], needs, strict=True)]
    return {**given, "actions": actions}


def _block(client: SyncPrefectClient, address: str | None) -> str | None:
    """Id of the block that holds the address, which Prefect encrypts in its database."""
    from prefect.blocks.webhook import Webhook
    from prefect.exceptions import ObjectNotFound
    from prefect.types import SecretDict
    from pydantic import SecretStr

    if address is not None:
        # Its default lets it call private addresses too: a receiver on this machine is nothing to hide from.
        webhook = Webhook(url=SecretStr(address), headers=SecretDict({"Content-Type": "application/json"}))
        return str(webhook.save(BLOCK, overwrite=True))
    try:
        found = client.read_block_document_by_name(BLOCK, "webhook", include_secrets=False)
    except ObjectNotFound:
        return None
    client.delete_block_document(found.id)
    return None


@contextmanager
def _client(api: str) -> Iterator[SyncPrefectClient]:
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_API_URL, temporary_settings

    pass_by_proxies()
    with (
        asked_of_prefect(f"automations and schedules at {api}"),
        temporary_settings({PREFECT_API_URL: api}),
        get_client(sync_client=True) as client,
    ):
        yield client
