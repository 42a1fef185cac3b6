"""The commands that only read or mend the ledger: `history`, `rollback`, `diff`."""

from __future__ import annotations

import getpass
import json
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tasks.store import home, write_atomic


def history_here(html: Path | None) -> int:
    """Write the page, and say where."""
    from flows.history_page import page
    from tasks.ledger.history import read_history
    from tasks.ledger.store import connect, tracking_uri, usable

    client = connect()
    with usable(tracking_uri()):
        runs = read_history(client)
    path = (html or home() / "history.html").expanduser().resolve()
    write_atomic(path, page(runs))
    print(f"{len(runs)} runs: {path}")
    return 0


def rollback_here(model: str, why: str) -> int:
    """The previous champion serves again."""
    from tasks.ledger.store import connect, tracking_uri, usable
    from tasks.promote import rollback

    client = connect()
    with usable(tracking_uri()):
        left, now = rollback(client, model, by=getpass.getuser(), why=why)
    print(f"{model}: champion is version {now.version} again, instead of {left.version}")
    print(f"a server that runs keeps what it has: draftproof deploy {model} --stop, then draftproof deploy {model}")
    return 0


def diff_here(one: str, other: str, out: Path | None) -> int:
    """What differs between two runs: 0 whatever it is."""
    from tasks.ledger.compare import compare
    from tasks.ledger.store import connect, tracking_uri, usable

    client = connect()
    with usable(tracking_uri()):
        found = compare(client, one, other)
    if out is not None:
        write_atomic(out, json.dumps(found, indent=1))
    console = Console()
    for section, differences in found.items():
        if not differences:
            continue
        table = Table("", one, other, title=section, title_justify="left", show_lines=False)
        for key, (a, b) in differences.items():
            table.add_row(Text(key), Text(_short(a)), Text(_short(b)))
        console.print(table)
    if not any(found.values()):
        print("the two runs differ in nothing that is on record")
    return 0


def _short(value: object) -> str:
    if value is None:
        return "–"
    text = f"{value:.5g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}…"
