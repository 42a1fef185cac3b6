"""A deployment of ours run by the worker of another work pool, and waited for."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import httpx

from tasks.verdict import BadInput, MachineTrouble

if TYPE_CHECKING:
    from uuid import UUID

    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun, State

_POLL_SECONDS = 1.0
_START = "`make serve` on the machine that serves starts one"


def run_in_pool(
    pool: str, flow: str, *, name: str, parameters: Mapping[str, Any], patience: float, say: Callable[[str], None]
) -> State[Any]:
    """How a run of the flow's deployment in this work pool ended; it is a subflow of the flow that this is called in.

    It ends with us: whatever interrupts the waiting cancels it. Raises BadInput where the pool, or a deployment of the flow
    in it, is not there; MachineTrouble when no worker of the pool has lived for `patience` seconds.
    """
    from prefect.client.orchestration import get_client
    from prefect.deployments import run_deployment

    with get_client(sync_client=True) as client:
        deployment = _deployment(client, pool, flow)
        started = cast("FlowRun", run_deployment(deployment, parameters=dict(parameters), flow_run_name=name, timeout=0))
        say(f"flow run {started.name!r} ({started.id}) waits for a worker of the work pool {pool!r}")
        try:
            return _ended(client, started.id, pool, patience)
        except BaseException:
            _cancel(client, started.id)
            raise


def _deployment(client: SyncPrefectClient, pool: str, flow: str) -> UUID:
    from prefect.client.schemas.filters import FlowFilter, FlowFilterName, WorkPoolFilter, WorkPoolFilterName
    from prefect.exceptions import ObjectNotFound

    where = f"at the Prefect server {client.api_url}"
    try:
        client.read_work_pool(pool)
    except ObjectNotFound as error:
        do = f"{_START}. PREFECT_API_URL has to name the same server here and there."
        raise BadInput("serving.pool", found=f"no work pool {pool!r} {where}", expected="a work pool with a worker", do=do) from error
    found = client.read_deployments(
        flow_filter=FlowFilter(name=FlowFilterName(any_=[flow])), work_pool_filter=WorkPoolFilter(name=WorkPoolFilterName(any_=[pool]))
    )
    if len(found) != 1:
        raise BadInput(
            "serving.pool",
            found=f"{len(found)} deployments of {flow!r} in the work pool {pool!r} {where}",
            expected="one",
            do=f"{_START}, and deploys it.",
        )
    return found[0].id


def _ended(client: SyncPrefectClient, flow_run: UUID, pool: str, patience: float) -> State[Any]:
    """Its last state. A Prefect server that is being restarted is waited for, as a worker is."""
    seen = time.monotonic()
    while True:
        with suppress(httpx.TransportError):
            state = client.read_flow_run(flow_run).state
            if state is not None and state.is_final():
                return state
            if _worker_lives(client, pool):
                seen = time.monotonic()
        if time.monotonic() - seen > patience:
            raise MachineTrouble(
                f"work pool {pool!r}: no worker has lived for {patience:.0f} s (serving.patience_seconds). {_START}; "
                f"`prefect work-pool inspect {pool}` tells what Prefect knows of it."
            )
        time.sleep(_POLL_SECONDS)


def _worker_lives(client: SyncPrefectClient, pool: str) -> bool:
    """By Prefect's own judgement: its server calls a worker offline when three heartbeats of 30 s are missing (prefect 3.9.1)."""
    return any(worker.status == "ONLINE" for worker in client.read_workers_for_work_pool(pool))


def _cancel(client: SyncPrefectClient, flow_run: UUID) -> None:
    """The worker ends the process; one that never began is cancelled at once. What stopped us matters more than a fault in this."""
    from prefect.states import Cancelling

    with suppress(Exception):
        client.set_flow_run_state(flow_run, Cancelling(message="the run that asked for it has ended"))
