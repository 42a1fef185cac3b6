"""The flow `watch-acceptance`: one look at a server in use, and an event when its acceptance fell for good."""

from __future__ import annotations

from typing import Any

from prefect import flow, get_run_logger
from prefect.artifacts import create_markdown_artifact
from prefect.events import emit_event
from prefect.states import Completed
from pydantic import BaseModel, ConfigDict, Field

from tasks.ledger import open_ledger
from tasks.watch import Fall, fallen, read_counters
from tasks.watch.kept import ServerCurve

EVENT = "drafter.acceptance-fell"


class Parameters(BaseModel):
    """Which server, and how much it takes to call it a fall."""

    model_config = ConfigDict(extra="forbid")

    url: str = Field(description="Address of the server; it has to have been started with `deploy.metrics: true`.")
    target: str = Field(description="The target's name, as in the config: its experiment in MLflow takes the curve.")
    drafter: str = Field(default="champion", description="What is served there, in a word; a new one starts a new history.")
    min_rounds: int = Field(default=200, gt=0, description="A look that finds fewer new verify rounds waits for the next.")
    share: float = Field(default=0.05, gt=0, lt=1, description="A fall of fewer drafts accepted per round than this share is none.")


@flow(name="watch-acceptance", persist_result=False)
def watch_acceptance(parameters: Parameters) -> Any:
    """Look once. A lasting fall is an event, `drafter.acceptance-fell`, which the deployment `nightly` waits for."""
    log = get_run_logger()
    now = read_counters(parameters.url)
    curve = ServerCurve.of(open_ledger(parameters.target), parameters.url, parameters.drafter)
    with curve.run:
        before = curve.last()
        if before is None:
            curve.start_from(now)
            return Completed(message="first look: counting starts here")
        new = now.since(before)
        if new.rounds < parameters.min_rounds:
            return Completed(message=f"{new.rounds:.0f} new verify rounds, {parameters.min_rounds} are needed: waiting")
        before_now = curve.intervals()
        curve.add(new, now, step=len(before_now))
    found = fallen(curve.intervals(), share=parameters.share)
    log.info(found.message)
    create_markdown_artifact(key="acceptance", markdown=found.message, description=f"Acceptance served at {parameters.url}")
    # Once: at the looks that follow, the same fall is still there.
    if found.fallen and not fallen(before_now, share=parameters.share).fallen:
        _tell(parameters, found)
    return Completed(message=found.message)


def _tell(parameters: Parameters, found: Fall) -> None:
    emit_event(
        event=EVENT,
        resource={"prefect.resource.id": f"draftproof.target.{parameters.target}", "prefect.resource.name": parameters.target},
        payload={"url": parameters.url, "drafter": parameters.drafter, **found.model_dump()},
    )
