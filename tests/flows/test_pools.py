"""Asking a work pool of a real Prefect server: what is not there is named, and what nobody took is not left behind."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate

from flows.pools import FLOW, deploy_serving, run_in_pool
from flows.serving_stage import serving_stage
from tasks.verdict import BadInput, MachineTrouble

PROJECT = Path(__file__).resolve().parents[2]


def ask(pool: str, said: list[str] | None = None) -> Any:
    parameters = {"parameters": {"job": "deploy", "run_id": "0" * 32, "target": "tiny", "order_sha256": "0" * 64}}
    lines = said if said is not None else []
    return run_in_pool(pool, FLOW, name="deploy of 0123abcd", parameters=parameters, patience=3, say=lines.append)


@pytest.fixture(scope="module")
def pool(prefect: None) -> str:
    """A work pool without a worker."""
    with get_client(sync_client=True) as client:
        client.create_work_pool(WorkPoolCreate(name="empty", type="process"))
    return "empty"


def test_a_pool_that_is_not_there(prefect: None) -> None:
    with pytest.raises(BadInput, match=r"serving\.pool: found no work pool 'nowhere' at the Prefect server http.*make serve"):
        ask("nowhere")


def test_a_pool_that_nothing_is_deployed_to(pool: str) -> None:
    with pytest.raises(BadInput, match="found 0 deployments of 'serving-stage' in the work pool 'empty'"):
        ask(pool)


def test_a_machine_of_another_name_is_not_put_beside_one_that_serves(prefect: None) -> None:
    with get_client(sync_client=True) as client:
        client.create_work_pool(WorkPoolCreate(name="taken", type="process"))
        client.send_worker_heartbeat(work_pool_name="taken", worker_name="first-machine", heartbeat_interval_seconds=30)
    with pytest.raises(BadInput, match="found the worker 'first-machine'; expected none but this machine's"):
        deploy_serving("taken", "second-machine")
    deploy_serving("taken", "first-machine")


def test_a_worker_that_is_not_there(pool: str) -> None:
    for _ in range(2):  # `make serve` again
        deploy_serving(pool, "this-machine")
    said: list[str] = []
    caught: list[MachineTrouble] = []

    @flow
    def asking() -> None:
        with pytest.raises(MachineTrouble, match=r"work pool 'empty': no worker has lived for 3 s .*`make serve`") as error:
            ask(pool, said)
        caught.append(error.value)

    begun = time.monotonic()
    asking()
    assert caught and time.monotonic() - begun < 60
    assert "'deploy of 0123abcd'" in said[0]
    with get_client(sync_client=True) as client:
        (left,) = [run for run in client.read_flow_runs() if run.name == "deploy of 0123abcd"]
    assert left.state is not None and left.state.name == "Cancelled", "a worker that comes later must not take it up"
    assert left.parent_task_run_id is not None


def test_a_prefect_server_that_stopped_answering_is_not_a_missing_worker(pool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(self: SyncPrefectClient, worker_pool: str) -> Any:
        raise httpx.ConnectError("connection refused")

    deploy_serving(pool, "this-machine")
    monkeypatch.setattr(SyncPrefectClient, "read_workers_for_work_pool", gone)

    @flow
    def asking() -> None:
        with pytest.raises(MachineTrouble, match=r"Prefect, asked for a run of 'serving-stage' in the work pool 'empty': ConnectError"):
            ask(pool)

    asking()


def test_the_flow_has_the_name_that_is_asked_for() -> None:
    assert serving_stage.name == FLOW
