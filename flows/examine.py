"""`draftproof doctor`: everything that can be checked without starting anything."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tasks.config import load
from tasks.environment import doctor
from tasks.verdict import Verdict

_STYLES = {"PASS": "green", "WARN": "yellow"}


def examine_here(config: Path, overrides: Sequence[str]) -> int:
    """Print each check; the exit status is the worst one's."""
    checks = doctor(load(config, list(overrides)))
    table = Table(show_header=False, box=None)
    for check in checks:
        table.add_row(Text(check.verdict, style=_STYLES.get(check.verdict, "red")), check.name, Text(check.message))
    Console().print(table)
    return Verdict.of("doctor", checks, passed="nothing is missing").verdict.exit_status
