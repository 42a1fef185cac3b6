"""Work pools of machines that serve: what is deployed there, and a run in one that is waited for."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import httpx

from flows.prefect_api import asked_of_prefect
from tasks.verdict import BadInput, MachineTrouble

if TYPE_CHECKING:
    from uuid import UUID

    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun, State

FLOW = "serving-stage"
QUEUE = "machine"
"""Of every pool: one run at a time has the machine."""
HEARD = {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30"}
"""As in infra/prefect.yaml: infra/automations.yaml counts on a sign of life each 30 s."""
_PROJECT = Path(__file__).resolve().parent.parent
_POLL_SECONDS = 2.0
_START = "`make serve` on the machine that serves starts one"


def deploy_serving(pool: str, worker: str) -> None:
    """`serving-stage/<pool>`, as this folder has it, for the pool's one worker; the pool has to be there.

    Raises BadInput where a worker of another name lives: stages of one run have to meet on one machine. MachineTrouble.
    """
    from prefect import flow
    from prefect.client.orchestration import get_client

    with asked_of_prefect(f"a deployment in the work pool {pool!r}"):
        with get_client(sync_client=True) as client:
            others = [each.name for each in client.read_workers_for_work_pool(pool) if each.status == "ONLINE" and each.name != worker]
        if others:
            do = "Give each machine a pool of its own: infra/services.py serve --pool NAME, and serving.pool."
            raise BadInput(f"work pool {pool!r}", found=f"the worker {others[0]!r}", expected="none but this machine's", do=do)
        flow.from_source(str(_PROJECT), "flows/serving_stage.py:serving_stage").deploy(  # type: ignore[union-attr]
            name=pool,
            work_pool_name=pool,
            work_queue_name=QUEUE,
            job_variables={"env": HEARD},
            description="Asked by runs that train elsewhere; not to be started by hand.",
            tags=["serving"],
            build=False,
            print_next_steps=False,
        )


def run_in_pool(
    pool: str, flow: str, *, name: str, parameters: Mapping[str, Any], patience: float, say: Callable[[str], None]
) -> State[Any]:
    """How a run of the flow's deployment in this work pool ended; it is a subflow of the flow that this is called in.

    It ends with us: whatever interrupts the waiting cancels it. Raises BadInput where the pool, or a deployment of the flow
    in it, is not there; MachineTrouble when no worker of the pool has lived for `patience` seconds, or Prefect fails.
    """
    from prefect.client.orchestration import get_client
    from prefect.deployments import run_deployment

    with asked_of_prefect(f"a run of {flow!r} in the work pool {pool!r}"), get_client(sync_client=True) as client:
        deployment = _deployment(client, pool, flow)
        started = cast("FlowRun", run_deployment(deployment, parameters=dict(parameters), flow_run_name=name, timeout=0))
        say(f"flow run {started.name!r} ({started.id}) waits for a worker of the work pool {pool!r}")
        try:
            return _ended(client, started.id, pool, patience, say)
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


def _ended(client: SyncPrefectClient, flow_run: UUID, pool: str, patience: float, say: Callable[[str], None]) -> State[Any]:
    """Its last state. A Prefect server that is being restarted is waited for, as a worker is: then its client's error is raised."""
    seen, last = time.monotonic(), ""
    while True:
        trouble: httpx.HTTPError | None = None
        try:
            state = client.read_flow_run(flow_run).state
            if state is not None and state.is_final():
                return state
            if state is not None and state.name != last:
                last = str(state.name)
                # A paused queue, or a run that has the machine, keeps it waiting for as long as that lasts.
                say(f"flow run {flow_run}: {last}")
            if _worker_lives(client, pool):
                seen = time.monotonic()
        except httpx.HTTPError as error:
            trouble = error
        if time.monotonic() - seen > patience:
            if trouble is not None:
                raise trouble
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
