"""The environment record: versions per interpreter, and the machine. It goes to MLflow with each run."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from tasks.verdict import Check


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Interpreter(_Record):
    """One interpreter that stages run in."""

    executable: str
    stages: list[str] = Field(description="Stages that run in it.")
    python: str = Field(description="Its version.")
    versions: dict[str, str | None] = Field(description="Distribution to version; null where it is not installed.")
    missing: dict[str, str] = Field(description="Module that a stage needs and cannot have, to the reason.")
    tasks_from: str | None = Field(default=None, description="File that `tasks` is imported from; null where there is none.")


class Machine(_Record):
    """Sizes in bytes."""

    platform: str
    cpu: str
    cpu_features: list[str] = Field(description="Of those that decide about speed and dtype.")
    cores: int
    memory: int
    memory_available: int
    disk_free: int
    gpus: list[str]


class EnvironmentRecord(_Record):
    interpreters: list[Interpreter]
    machine: Machine
    disk_needed: int = Field(description="Estimated from the config, in bytes.")
    checks: list[Check]
