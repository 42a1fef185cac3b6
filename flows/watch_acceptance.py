"""The flow `watch-acceptance`: one look at a server in use, and an event when its acceptance fell for good."""

from __future__ import annotations

from typing import Any, NamedTuple

from prefect import flow, get_run_logger
from prefect.artifacts import create_markdown_artifact
from prefect.events import emit_event
from prefect.states import Completed
from pydantic import BaseModel, ConfigDict, Field

from flows.kept import died, running
from flows.outcome import RunReport
from tasks.ledger import open_ledger
from tasks.verdict import DraftproofError, MachineTrouble
from tasks.watch import Fall, fallen, read_counters
from tasks.watch.kept import ServerCurve

EVENT = "drafter.acceptance-fell"


class Parameters(BaseModel):
    """Which server, and how much it takes to call it a fall."""

    model_config = ConfigDict(extra="forbid")

    target: str = Field(description="The target's name, as in the config: its experiment in MLflow takes the curve.")
    url: str | None = Field(
        default=None,
        description="Address of a server that was started with `deploy.metrics: true`; null = the one that `draftproof deploy` keeps.",
    )
    drafter: str = Field(default="champion", description="With url: what is served there, in a word; a new one starts a new history.")
    min_rounds: int = Field(default=200, gt=0, description="A look that finds fewer new verify rounds waits for the next.")
    share: float = Field(default=0.05, gt=0, lt=1, description="A fall of fewer drafts accepted per round than this share is none.")


class _Watched(NamedTuple):
    url: str
    drafter: str


@flow(name="watch-acceptance", persist_result=False)
def watch_acceptance(parameters: Parameters) -> Any:
    """Look once. A lasting fall is an event, `drafter.acceptance-fell`, which the deployment `nightly` waits for."""
    try:
        return Completed(message=_look(parameters))
    except DraftproofError as error:
        return RunReport.of_error(error, "watch").state()


def _look(parameters: Parameters) -> str:
    """What was found, in a line. Raises BadInput, and MachineTrouble for a server that is gone."""
    watched = _server(parameters)
    if watched is None:
        return f"no server of {parameters.target} is kept: nothing to watch"
    now = read_counters(watched.url)
    curve = ServerCurve.of(open_ledger(parameters.target), *watched)
    with curve.run:
        before = curve.last()
        if before is None:
            curve.start_from(now)
            return "first look: counting starts here"
        new = now.since(before)
        if new.rounds < parameters.min_rounds:
            return f"{new.rounds:.0f} new verify rounds, {parameters.min_rounds} are needed: waiting"
        before_now = curve.intervals()
        curve.add(new, now, step=len(before_now))
    found = fallen(curve.intervals(), share=parameters.share)
    get_run_logger().info(found.message)
    create_markdown_artifact(key="acceptance", markdown=found.message, description=f"Acceptance served at {watched.url}")
    # Once: at the looks that follow, the same fall is still there.
    if found.fallen and not fallen(before_now, share=parameters.share).fallen:
        curve.fell(found)
        _tell(parameters.target, watched, found)
    return found.message


def _server(parameters: Parameters) -> _Watched | None:
    """Raises MachineTrouble when the kept server is gone without having been stopped."""
    if parameters.url is not None:
        return _Watched(parameters.url, parameters.drafter)
    model = f"{parameters.target}-eagle3"
    if died(model):
        raise MachineTrouble(
            f"the server that was kept of {model} is gone; its log is in DRAFTPROOF_HOME/served. draftproof deploy {model}"
        )
    record = running(model)
    return _Watched(record.url, str(record.drafter)) if record else None


def _tell(target: str, watched: _Watched, found: Fall) -> None:
    emit_event(
        event=EVENT,
        resource={"prefect.resource.id": f"draftproof.target.{target}", "prefect.resource.name": target},
        payload={**watched._asdict(), **found.model_dump()},
    )
