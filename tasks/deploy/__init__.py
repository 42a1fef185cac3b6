"""Deploy: the real SGLang server, started with everything explicit, proved to be what was asked for, and ended.

The door of the stage. Heavy imports happen inside the functions.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tasks.config import DeployConfig
from tasks.deploy.generation import Generation as Generation
from tasks.report import Report

if TYPE_CHECKING:
    from tasks.deploy.server import Server


def start_server(
    config: DeployConfig,
    *,
    target: Path,
    drafter: Path | None,
    steps: int | None,
    log: Path,
    report: Report,
    keep: bool = False,
) -> Server:
    """Start a server and return it once a real generation came back and its settings were compared with what was asked.

    `drafter` and `steps` are both None for the plain server, both given for the speculative one (a chain of
    `steps` drafts per round). The server writes to `log`. A kept server (`keep`) outlives this process; any
    other one is gone when the returned context manager is left, or when this process ends in whatever way.

    Raises BadInput for settings that SGLang would change or ignore in silence, and for a port of the config that
    is taken; MachineTrouble, with the log's tail, when the server dies or does not answer in time. A setting that
    the server resolved to something else is no exception: it is a FAIL in `Server.contract`.
    """
    from tasks.deploy.server import Server

    return Server.start(config, target=target, drafter=drafter, steps=steps, log=log, report=report, keep=keep)
