"""What the page of a flow run in Prefect shows while it runs: lines in its log, and how far a stage is as a bar."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, cast

from flows.progress import figures

if TYPE_CHECKING:
    from uuid import UUID

_SECONDS = 10.0
"""Between two updates of a bar: each is a request to Prefect's server, beside what may be timed."""


def tell(lines: Iterable[str]) -> None:
    """In the log of the flow or task run that this is called in; nothing where there is none."""
    from prefect.exceptions import MissingContextError
    from prefect.logging import get_run_logger

    with suppress(MissingContextError):
        logger = get_run_logger()
        for line in lines:
            logger.info("%s", line)


class Bar:
    """A stage's progress, an artifact of its task run. A server of Prefect's that fails takes the bar away, not the stage."""

    def __init__(self, stage: str) -> None:
        self._stage = stage
        self._artifact: UUID | None = None
        self._shown = -_SECONDS

    def show(self, done: float, total: float, unit: str, measured: Mapping[str, float]) -> None:
        """Now and then, and when it is done."""
        now = time.monotonic()
        if now - self._shown < _SECONDS and done < total:
            return
        self._shown = now
        import httpx
        from prefect.artifacts import create_progress_artifact, update_progress_artifact
        from prefect.context import TaskRunContext
        from prefect.exceptions import PrefectException

        if TaskRunContext.get() is None:
            return
        percent = 100 * done / total if total else 100.0
        told = f"{done:,.0f} of {total:,.0f} {unit}" + (f"; {figures(measured)}" if measured else "")
        with suppress(PrefectException, httpx.HTTPError):
            if self._artifact is None:
                self._artifact = cast("UUID", create_progress_artifact(percent, key=self._stage, description=told))
            else:
                update_progress_artifact(self._artifact, percent, description=told)
