"""A stage as a Prefect task with a run of its own in the ledger. The stages' `task.py` use it; their logic does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

from prefect import task
from prefect.cache_policies import NO_CACHE

from tasks.report import Report
from tasks.verdict import MachineTrouble, Verdict

P = ParamSpec("P")
R = TypeVar("R")


class StageRun(Report, Protocol):
    """The stage's run in the ledger, and whoever watches."""

    def log(self, values: Mapping[str, float]) -> None:
        """Figures that are final."""

    def headline(self, values: Mapping[str, float]) -> None:
        """Figures of the pipeline's run itself, by the names of `design.md` (`train.accuracy_step0`, …)."""

    def verdict(self, verdict: Verdict) -> None:
        """Keep every check with the stage's run, which is marked failed if it is no pass."""

    def tag(self, values: Mapping[str, str]) -> None:
        """Tags of the stage's run."""

    def pipeline_tag(self, values: Mapping[str, str]) -> None:
        """Tags of the pipeline's run and of the stage's."""

    def text(self, name: str, content: str) -> None:
        """A small artifact."""

    def refer(self, files: Mapping[str, tuple[Path, str]]) -> None:
        """Large products, by path and SHA-256."""


class Runs(Protocol):
    """Opens the run of each stage."""

    def stage(self, name: str) -> AbstractContextManager[StageRun]:
        """Closed by how the `with` statement is left."""


def stage_task(name: str, *, retries: int = 0) -> Callable[[Callable[Concatenate[StageRun, P], R]], Callable[Concatenate[Runs, P], R]]:
    """Make a Prefect task of a function that is handed its stage's run.

    Only the machine's trouble is tried again, `retries` times: a failed check stays failed, and bad input stays bad.
    Prefect's own cache is off: stages keep their products by content in `tasks.store`.
    """

    def decorate(body: Callable[Concatenate[StageRun, P], R]) -> Callable[Concatenate[Runs, P], R]:
        @wraps(body)
        def run(runs: Runs, *args: P.args, **kwargs: P.kwargs) -> R:
            with runs.stage(name) as stage_run:
                return body(stage_run, *args, **kwargs)

        made = task(
            name=name,
            task_run_name=name,
            retries=retries,
            retry_delay_seconds=[5.0 * 2**attempt for attempt in range(retries)],
            retry_condition_fn=_machines_trouble,
            cache_policy=NO_CACHE,
            persist_result=False,
        )(run)
        return cast(Callable[Concatenate[Runs, P], R], made)

    return decorate


def _machines_trouble(_task: Any, _task_run: Any, state: Any) -> bool:
    """Whether what ended a task run was the machine's trouble."""
    return isinstance(state.result(raise_on_failure=False), MachineTrouble)
