"""What is promoted, and what came of it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from tasks.config import DeployConfig, TargetConfig
from tasks.statistics import Interval

Alias = Literal["champion", "challenger"]


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DataSource(_Record):
    """What a drafter was trained or measured on: it stays where it is, and is known by its hash."""

    name: str
    path: Path
    sha256: str
    use: Literal["training", "evaluation"]


class Release(_Record):
    """A drafter with everything that is needed to serve it as it was measured."""

    model: str = Field(pattern=r"^[^/:@]+$", description="Registered name; MLflow refuses a slash.")
    drafter: Path = Field(description="Folder of the exported checkpoint.")
    target: TargetConfig
    target_sha256: str
    deploy: DeployConfig
    steps: int | None = Field(description="The chosen draft length; null where none was measured.")
    by_concurrency: dict[int, dict[str, int]] = Field(
        default={}, description="The fastest setting (steps, topk, draft_tokens) at each measured number of requests at once."
    )
    data: list[DataSource] = Field(default=[], description="What it was trained and measured on; empty for one found in the registry.")
    stops_paying: int | None = Field(
        default=None, description="The least measured concurrency at which speculation is not shown to be faster; null = none."
    )


class Duel(_Record):
    """The candidate and the champion as one run measured them."""

    version: str = Field(description="The champion's.")
    setting: str = Field(description="With which the champion was served.")
    champion_tok_s: float
    candidate_tok_s: float
    over: Interval = Field(description="The candidate's speed over the champion's, from paired times.")


class Promotion(_Record):
    """A version in MLflow's registry."""

    model: str
    version: str
    alias: Alias
    files_sha256: str = Field(pattern=r"^[0-9a-f]{64}$", description="Over the names and contents of the drafter's files.")
    reason: str = Field(description="The verdict's message.")
    previous_champion: str | None = Field(description="The version that was champion before, kept for a rollback.")
