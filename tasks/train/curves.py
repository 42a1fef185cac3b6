"""The library's metric logger, heard: each of its records becomes a point of our curves."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

from tasks.report import Report

LOGGER = "speculators.metrics"


class _Listener(logging.Handler):
    """The logger's messages are dicts: {"train" | "val": metrics, "lr": …, "profile": …} (trainer.py, speculators 0.9.0)."""

    def __init__(self, report: Report, ttt_steps: int) -> None:
        super().__init__()
        self.report, self.ttt_steps = report, ttt_steps
        self.last: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        message, step = cast("dict[str, Any]", record.msg), record.__dict__["step"]
        if "train" in message:
            self.last = self._values(message["train"], suffix="")
            self.report.metrics({**self.last, "learning_rate": _first(message["lr"])}, step)
        else:
            values = self._values(message["val"], suffix="_epoch")
            self.report.metrics({f"held_out_{name}": value for name, value in values.items()}, step)

    def _values(self, metrics: Mapping[str, float], suffix: str) -> dict[str, float]:
        """`full_acc_<k>`: steps 0..k all right; `cond_acc_<k>` is left out, its denominator counts other positions."""
        accuracies = {f"accuracy_step{k}": metrics[f"full_acc_{k}{suffix}"] for k in range(self.ttt_steps)}
        return {"loss": metrics[f"loss{suffix}"], **accuracies}


@contextmanager
def curves(report: Report, ttt_steps: int) -> Iterator[_Listener]:
    """Send what the library logs to `report.metrics` while open; `.last` holds the newest training point."""
    logger = logging.getLogger(LOGGER)
    before = logger.level, logger.propagate
    listener = _Listener(report, ttt_steps)
    logger.addHandler(listener)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield listener
    finally:
        logger.removeHandler(listener)
        logger.setLevel(before[0])
        logger.propagate = before[1]


def _first(lr: float | dict[str, Any]) -> float:
    """One learning rate, or one per optimizer."""
    return float(next(iter(lr.values()))) if isinstance(lr, dict) else float(lr)
