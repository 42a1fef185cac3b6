"""Deploy: the real SGLang server, started with everything explicit, proved to be what was asked for, and ended.

The door of the stage. Heavy imports happen inside the functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.config import DeployConfig
from tasks.deploy.contract import differing as differing
from tasks.deploy.generation import Generation as Generation
from tasks.report import Report
from tasks.verdict import Check

if TYPE_CHECKING:
    from tasks.deploy.attached import AttachedServer
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
    probes: Path | None = None,
) -> Server:
    """Start a server and return it once a real generation came back and its settings were compared with what was asked.

    `drafter` and `steps` are both None for the plain server, both given for the speculative one (a chain of
    `steps` drafts per round). The server writes to `log`. It is gone when its `with` block is left, or when this
    process ends in whatever way; a kept one (`keep`) stays if its block is left without an exception. With `probes` it
    records there what its drafter is fed and answers in probe requests (`Server.probe`), and runs without graphs.

    May be called from two threads, so that a plain and a speculative server start at the same time.
    Raises ProofFailed, before anything is started, for settings that SGLang would change or ignore in silence;
    BadInput for an interpreter, a model folder or a GPU that is not there; MachineTrouble when the config's port is
    taken, and, with the log's tail, when the server dies or does not answer in time. A setting that the server
    resolved to something else is no exception: it is a FAIL in `Server.contract`.
    """
    from tasks.deploy.server import Server

    return Server.start(config, target=target, drafter=drafter, steps=steps, log=log, report=report, keep=keep, probes=probes)


def attach_server(url: str, *, request_seconds: float) -> AttachedServer:
    """A server that runs already, not started by us: it is asked, and never ended. Raises BadInput when there is none at `url`."""
    from tasks.deploy.attached import AttachedServer

    return AttachedServer(url, request_seconds)


def check_launch(config: DeployConfig, *, target: Path, drafter: Path | None, steps: int | None, ask_sglang: bool) -> list[Check]:
    """What can be checked of a launch without starting it: the rules, then, if asked for, SGLang's own argument parser.

    The latter runs in a subprocess of the serving interpreter, for some 20 s of CPU time.
    Raises BadInput for a model folder or a GPU that is not there.
    """
    from tasks.deploy.launch import plan
    from tasks.deploy.ports import free_port
    from tasks.deploy.preflight import preflight
    from tasks.deploy.refusals import refusals

    launch = plan(config, target=target, drafter=drafter, steps=steps, port=config.port or free_port(config.host))
    return preflight(launch) if ask_sglang else refusals(launch.flags)


def check_running(info: Mapping[str, Any], *, target: Path, checkpoint: Path) -> list[Check]:
    """The rules of a launch, on what a server that somebody else started resolved (`info`: its `/server_info`).

    Its folders may lie on another machine, so `target` and `checkpoint` are read in their place.
    Raises BadInput for folders without a readable config.json.
    """
    from tasks.deploy import running

    return running.check_running(info, target=target, checkpoint=checkpoint)
