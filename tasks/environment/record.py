"""The environment record: versions per interpreter, and the machine. It goes to MLflow with each run."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from tasks.verdict import Check

ProcessName = Literal["pipeline", "serving", "worker"]
"""`worker`: what runs the stages of a serving side that is elsewhere."""
Side = Literal["both", "training", "serving"]
"""What is looked at: one machine that does everything, or one of two."""


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Interpreter(_Record):
    """One kind of process that stages run in, and what its interpreter has."""

    process: ProcessName
    executable: str
    python: str = Field(description="Its version.")
    versions: dict[str, str | None] = Field(description="Distribution to version; null where it is not installed.")
    missing: dict[str, str] = Field(description="Module that a stage needs and cannot have, to the reason.")
    tasks_from: str | None = Field(description="File that `tasks` is imported from; null where there is none.")
    seconds: float = Field(description="What the look took.")


class Machine(_Record):
    """Sizes in bytes."""

    platform: str
    cpu: str
    cpu_features: list[str] = Field(description="Of those that decide about speed and dtype.")
    cores: int = Field(description="That this process may use.")
    memory: int
    memory_available: int
    disk_free: int = Field(description="Where DRAFTPROOF_HOME lies.")
    gpus: list[str]


class EnvironmentRecord(_Record):
    """What was found, and a check for each need."""

    interpreters: list[Interpreter]
    machine: Machine
    code: str = Field(description="SHA-256 over the source of this project that runs there.")
    disk_needed: int | None = Field(description="Estimated from the config, in bytes; null = the target's sizes are not known yet.")
    memory_needed: int = Field(description="Estimated from the config, in bytes.")
    checks: list[Check]
