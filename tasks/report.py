"""How a stage tells what it is doing, without knowing who listens (terminal, MLflow, Prefect)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Report(Protocol):
    """What a stage may say while it works. `Silent` is the listener that ignores it all."""

    def progress(self, done: float, total: float, unit: str, measured: Mapping[str, float] | None = None) -> None:
        """`done` of `total` `unit`s are finished; `measured` is what is known so far (name to value)."""

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """A point of a curve: goes to the stage's MLflow run as it is."""

    def say(self, text: str) -> None:
        """One line for a person."""


class Silent:
    """A `Report` that nobody listens to."""

    def progress(self, done: float, total: float, unit: str, measured: Mapping[str, float] | None = None) -> None:
        return None

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        return None

    def say(self, text: str) -> None:
        return None
