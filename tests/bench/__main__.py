"""`make bench`: what is fast, and what is found, measured on the demo's drafter. `PARTS="faults decode"` chooses."""

from __future__ import annotations

import json
import platform
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from flows.pipeline import commit
from tasks.device import cores
from tasks.environment.machine import machine
from tasks.store import home
from tasks.verdict import BadInput, DraftproofError
from tests.bench import decode, faults, noise, verify
from tests.bench.drafter import Benched

_PARTS = {"faults": faults.measure, "verify": verify.measure, "decode": decode.measure, "noise": noise.measure}
# The rest takes hours.
_USUAL = ("faults", "verify", "decode")


def main(
    parts: Annotated[list[str] | None, typer.Argument(help=f"Of {', '.join(_PARTS)}; without one {', '.join(_USUAL)}.")] = None,
    model: Annotated[str, typer.Option(help="A registered drafter; its champion is measured.")] = "smollm2-135m-instruct-eagle3",
) -> None:
    """Measure, print, and keep the figures below `DRAFTPROOF_HOME/bench/`."""
    for part in parts or _USUAL:
        if part not in _PARTS:
            raise BadInput("PARTS", found=part, expected=" ".join(_PARTS), do='Write for example: make bench PARTS="faults".')
    benched = Benched.champion(model)
    console = Console(width=None if sys.stdout.isatty() else 180)
    for part in parts or _USUAL:
        began = time.monotonic()
        table, figures = _PARTS[part](benched)
        console.print(table)
        typer.echo(f"{part}: {time.monotonic() - began:.0f} s; kept in {_keep(part, table, figures)}")


def _keep(part: str, table: Table, figures: Any) -> Path:
    """As JSON, and the table as markdown beside it."""
    found = machine()
    where = {"cpu": found.cpu, "cores": cores(), "features": found.cpu_features, "memory": found.memory, "platform": platform.platform()}
    path = home() / "bench" / f"{part}-{time.strftime('%Y%m%d-%H%M%S')}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"part": part, "commit": commit(), "machine": where, "figures": figures}, indent=1))
    origin = f"{time.strftime('%Y-%m-%d')}, commit {commit()}, {found.cpu}, {cores()} cores, {found.memory / 2**30:.0f} GB"
    path.with_suffix(".md").write_text(f"# {table.title}\n\n{origin}\n\n{_markdown(table)}\n")
    return path


def _markdown(table: Table) -> str:
    rows = zip(*(column.cells for column in table.columns), strict=True)
    lines = [[str(column.header) for column in table.columns], ["---"] * len(table.columns), *rows]
    return "\n".join(f"| {' | '.join(str(cell).replace('|', '/') for cell in line)} |" for line in lines)


if __name__ == "__main__":
    try:
        typer.run(main)
    except DraftproofError as error:
        typer.echo(f"bench: {error}", err=True)
        sys.exit(error.exit_status)
