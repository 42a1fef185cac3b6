"""`draftproof doctor`: everything that can be checked without starting anything."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from flows.early import check_against_target, check_launches
from tasks.config import SCHEMES, Config, load
from tasks.deploy import check_launch
from tasks.deploy.kept import kept_servers
from tasks.environment import doctor
from tasks.products import TargetProduct
from tasks.report import Silent
from tasks.store import Store
from tasks.target import prepare_target
from tasks.verdict import Check, DraftproofError, Outcome
from tasks.wiring.kinds import Kind

_STYLES = {"PASS": "green", "WARN": "yellow"}


def examine_here(config: Path, overrides: Sequence[str]) -> int:
    """Print each check; the exit status is that of what is wrong: 1 a check, 2 bad input, 3 the machine; the largest of several."""
    checks = examine(load(config, list(overrides)))
    table = Table(show_header=False, box=None)
    for check in checks:
        table.add_row(Text(check.verdict, style=_STYLES.get(check.verdict, "red")), check.name, Text(check.message))
    Console().print(table)
    return max(int(check.numbers.get("exit_status", check.verdict.exit_status)) for check in checks)


def examine(config: Config) -> list[Check]:
    """The environment; then, for a target in a local folder, what a run would find of it before it spends any work."""
    checks = [*doctor(config, kept_ports=[server.port for server in kept_servers()]), *_serving_side(config)]
    if config.target.source.startswith(SCHEMES):
        message = f"{config.target.source} was not looked at: name a local folder to have it, the boundaries and the launch checked"
        return [*checks, Check(name="target", verdict=Outcome.WARN, message=message)]
    try:
        target = prepare_target(config.target, store=Store(), report=Silent())
        check_against_target(config, target)
        if not config.serving.pool:
            check_launches(config, target)
        checks.append(
            Check(name="target", verdict=Outcome.PASS, message=f"{target.folder}: a {target.print.family}, and the config fits it")
        )
        return [*checks, *([] if config.serving.pool else _launch(config, target))]
    except DraftproofError as error:
        return [*checks, _wrong(error)]


def _serving_side(config: Config) -> list[Check]:
    pool = config.serving.pool
    message = f"work pool {pool!r} serves: each run looks at that side before it trains; nothing of it was looked at here"
    return [Check(name="serving side", verdict=Outcome.WARN, message=message)] if pool else []


def _launch(config: Config, target: TargetProduct) -> list[Check]:
    """SGLang's own parser, in the interpreter that would serve; a drafter is not there yet."""
    found = check_launch(config.deploy, target=target.folder, drafter=None, steps=None, ask_sglang=True)
    return [check.model_copy(update={"name": f"plain server: {check.name}"}) for check in found]


def _wrong(error: DraftproofError) -> Check:
    return Check(name="target", verdict=Outcome.FAIL, kind=Kind.ENVIRONMENT, message=str(error), numbers={"exit_status": error.exit_status})
