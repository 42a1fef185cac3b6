"""SGLang servers of `tasks.deploy`, as `tasks.benchmark` asks for them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from flows.prefect_page import tell
from tasks.benchmark import Setting, Start
from tasks.config import DeployConfig
from tasks.deploy import differing, start_server
from tasks.verdict import Check, ProofFailed, Verdict

if TYPE_CHECKING:
    from tasks.deploy.server import Server
    from tasks.ledger import Run
    from tasks.stage import StageRun

_LARGEST_LOG = 2_000_000  # bytes of a server's log that are worth an upload
_REQUEST = re.compile(r'INFO: +[\d.]+:\d+ - "')  # a line for each of thousands of requests


def keep_contract(checks: list[Check], found: list[Check], *, server: str) -> None:
    """Remember what a server resolved, once. Raises ProofFailed when that is not what was asked for."""
    named = [check.model_copy(update={"name": f"{server}: {check.name}", "stage": "deploy"}) for check in found]
    again = {check.name for check in named}  # a server that was started again, when exploring or in a retry
    checks[:] = [check for check in checks if check.name not in again] + named
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


def starter(
    config: DeployConfig,
    *,
    target: Path,
    drafter: Path,
    logs: Path,
    run: StageRun,
    contract: list[Check],
    role: Literal["speculative", "champion"] = "speculative",
) -> Start:
    """Starts servers whose settings are compared with what was asked for; the comparisons are added to `contract`.

    Commands, resolved arguments and differences become artifacts of `run`, `launch/*.json`. Each server takes a free port:
    two are measured at a time, and the config's own port is for the server that is kept.
    """
    config = config.model_copy(update={"port": None})
    launches = _Launches(run)

    @contextmanager
    def start(setting: Setting | None) -> Iterator[Server]:
        name = "plain" if setting is None else f"{role}-{setting.name}-steps"
        settings = setting.deployed(config) if setting else config
        asked, steps = (drafter, setting.steps) if setting else (None, None)
        with start_server(settings, target=target, drafter=asked, steps=steps, log=logs / f"{name}.log", report=run) as server:
            launches.keep(name, server)
            told = f"{'champion' if role == 'champion' else 'server'} with {setting}" if setting else "plain server"
            keep_contract(contract, server.contract, server=told)
            yield server

    return start


def keep_logs(run: Run, logs: Path, *, since: float = 0.0) -> None:
    """What servers wrote, as artifacts of the run and in Prefect's log of it. `since`: by the clock, in seconds; older files are left."""
    for log in sorted(logs.glob("*.log")):
        found = log.stat()
        if found.st_mtime < since:
            continue
        if found.st_size > _LARGEST_LOG:
            tell([f"{log.stem}: {found.st_size} bytes are too many to be kept here, see {log}"])
            continue
        run.file(log, "servers")
        with log.open(errors="replace") as lines:
            tell(f"{log.stem}: {line.rstrip()}" for line in lines if not _REQUEST.search(line))
