"""Every pipeline run that the ledger holds, in the order of time, as a plot or a comparison wants it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

from tasks.ledger.store import pages

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment
    from mlflow.entities import Run as MlflowRun

_PREFIX = "draftproof/"


class PastRun(BaseModel):
    """A pipeline run that ended with a verdict."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    name: str
    target: str
    began: datetime
    verdict: str
    kind: str
    stage: str
    host: str
    target_sha256: str
    metrics: dict[str, float] = Field(description="By the names of design.md.")
    champion: bool = Field(description="Whether it made the version that is champion now.")


def read_history(client: MlflowClient) -> list[PastRun]:
    """The oldest first. Raises MLflow's own errors when the store cannot be used."""
    champions = _champions(client)
    found = [
        _past(run, experiment.name.removeprefix(_PREFIX), champions)
        for experiment in experiments(client)
        for run in pages(client.search_runs, experiment_ids=[experiment.experiment_id])
        if "mlflow.parentRunId" not in run.data.tags and "draftproof.commit" in run.data.tags and run.data.tags.get("draftproof.verdict")
    ]
    return sorted(found, key=lambda run: run.began)


def experiments(client: MlflowClient) -> Iterator[Experiment]:
    """The experiments of all targets."""
    return pages(client.search_experiments, filter_string=f"name LIKE '{_PREFIX}%'")


def _past(run: MlflowRun, target: str, champions: set[str]) -> PastRun:
    tags: Mapping[str, str] = run.data.tags
    return PastRun(
        id=run.info.run_id,
        name=run.info.run_name,
        target=target,
        began=datetime.fromtimestamp(run.info.start_time / 1000, UTC),
        verdict=tags["draftproof.verdict"],
        kind=tags.get("draftproof.kind", ""),
        stage=tags.get("draftproof.stage", ""),
        host=tags.get("draftproof.host", ""),
        target_sha256=tags.get("draftproof.target_sha256", ""),
        metrics=run.data.metrics,
        champion=run.info.run_id in champions,
    )


def _champions(client: MlflowClient) -> set[str]:
    """Runs of the versions that are champion. A search shows no aliases (mlflow 3.17.2): asked for by alias."""
    models = pages(client.search_registered_models)
    named = [client.get_registered_model(model.name) for model in models]
    return {client.get_model_version_by_alias(model.name, "champion").run_id for model in named if "champion" in model.aliases}
