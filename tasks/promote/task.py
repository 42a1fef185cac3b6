"""The Prefect task of the promotion."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tasks.promote import Promotion, Release, promote
from tasks.stage import StageRun, stage_task
from tasks.verdict import Verdict

if TYPE_CHECKING:
    from mlflow import MlflowClient


@stage_task("promote")
def promotion(run: StageRun, *, client: MlflowClient, experiment: str, run_id: str, release: Release, verdict: Verdict) -> Promotion:
    """Register the drafter under the alias that the verdict allows. `run_id` is the pipeline's run."""
    made = promote(client, experiment=experiment, run_id=run_id, release=release, verdict=verdict)
    run.tag({"draftproof.alias": made.alias, "draftproof.version": made.version, "draftproof.reason": made.reason})
    run.verdict(verdict)
    run.text("promotion.json", made.model_dump_json(indent=1))
    run.say(f"{made.model} version {made.version} is {made.alias}")
    return made
