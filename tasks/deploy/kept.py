"""Servers that `draftproof deploy` left running: listed and stopped."""

from __future__ import annotations

from tasks.deploy.records import ServerRecord, records
from tasks.verdict import BadInput


def kept_servers() -> list[ServerRecord]:
    """Kept servers that run, the oldest first."""
    return [record for record in records() if record.kept and record.alive]


def stop_kept(which: str | None = None) -> list[ServerRecord]:
    """End the kept server with this id or URL, or all of them; returns what was ended, when it is gone.

    Raises BadInput when `which` names none.
    """
    running = kept_servers()
    chosen = [record for record in running if which in (None, record.id, record.url)]
    if which is not None and not chosen:
        known = ", ".join(record.url for record in running) or "none"
        raise BadInput("--stop", found=which, expected=f"a server that runs: {known}", do="Name its URL, or none for all of them.")
    for record in chosen:
        record.end()
    return chosen
