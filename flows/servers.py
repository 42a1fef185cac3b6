"""SGLang servers of `tasks.deploy`, as `tasks.benchmark` asks for them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.benchmark import Start
from tasks.config import DeployConfig
from tasks.deploy import start_server
from tasks.deploy.contract import differing
from tasks.verdict import Check, ProofFailed, Verdict

if TYPE_CHECKING:
    from tasks.deploy.server import Server
    from tasks.stage import StageRun


def keep_contract(checks: list[Check], found: list[Check], *, steps: int | None) -> None:
    """Remember what a server resolved, once. Raises ProofFailed when that is not what was asked for."""
    server = "plain server" if steps is None else f"server with {steps} steps"
    named = [check.model_copy(update={"name": f"{server}: {check.name}", "stage": "deploy"}) for check in found]
    checks += [check for check in named if check not in checks]  # a server that was started again
    verdict = Verdict.of("deploy", named, passed="the server resolved what was asked for")
    if verdict.verdict.exit_status:
        raise ProofFailed(verdict)


class _Launches:
    """Command, environment and resolved arguments of each server as artifacts, and what tells a server from the plain one."""

    def __init__(self, run: StageRun) -> None:
        self._run = run
        self._resolved: dict[str, dict[str, Any]] = {}

    def keep(self, name: str, server: Server) -> None:
        info = self._resolved[name] = server.info()
        self._write(name, {**server.launch.record(), "resolved": info})
        if "plain" in self._resolved:
            for other in self._resolved.keys() - {"plain"}:
                self._write(f"plain-against-{other}", differing(self._resolved["plain"], self._resolved[other]))

    def _write(self, name: str, value: Mapping[str, Any]) -> None:
        self._run.text(f"launch/{name}.json", json.dumps(value, indent=1, default=str))


def starter(config: DeployConfig, *, target: Path, drafter: Path, logs: Path, run: StageRun, contract: list[Check]) -> Start:
    """Starts servers whose settings are compared with what was asked for; the comparisons are added to `contract`.

    Commands, resolved arguments and differences become artifacts of `run`, `launch/*.json`. Each server takes a free port:
    two are measured at a time, and the config's own port is for the server that is kept.
    """
    config = config.model_copy(update={"port": None})
    launches = _Launches(run)

    @contextmanager
    def start(steps: int | None) -> Iterator[Server]:
        name = "plain" if steps is None else f"speculative-{steps}-steps"
        asked = drafter if steps else None
        with start_server(config, target=target, drafter=asked, steps=steps, log=logs / f"{name}.log", report=run) as server:
            launches.keep(name, server)
            keep_contract(contract, server.contract, steps=steps)
            yield server

    return start
