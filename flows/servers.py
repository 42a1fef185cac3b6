"""SGLang servers of `tasks.deploy`, as `tasks.benchmark` asks for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.benchmark import Start
from tasks.config import DeployConfig
from tasks.deploy import start_server
from tasks.report import Report
from tasks.verdict import Check, ProofFailed, Verdict

if TYPE_CHECKING:
    from tasks.deploy.server import Server


def keep_contract(checks: list[Check], found: list[Check], *, steps: int | None) -> None:
    """Remember what a server resolved. Raises ProofFailed when that is not what was asked for."""
    server = "plain server" if steps is None else f"server with {steps} steps"
    named = [check.model_copy(update={"name": f"{server}: {check.name}"}) for check in found]
    checks += named
    verdict = Verdict.of("deploy", named, passed="the server resolved what was asked for")
    if verdict.verdict.exit_status:
        raise ProofFailed(verdict)


def starter(config: DeployConfig, *, target: Path, drafter: Path, logs: Path, report: Report, contract: list[Check]) -> Start:
    """Starts servers whose settings are compared with what was asked for; the comparisons are added to `contract`.

    Each takes a free port: two are measured at a time, and the config's own port is for the server that is kept.
    """
    config = config.model_copy(update={"port": None})

    @contextmanager
    def start(steps: int | None) -> Iterator[Server]:
        log = logs / ("plain.log" if steps is None else f"speculative-{steps}-steps.log")
        with start_server(config, target=target, drafter=None if steps is None else drafter, steps=steps, log=log, report=report) as server:
            keep_contract(contract, server.contract, steps=steps)
            yield server

    return start
