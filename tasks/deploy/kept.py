"""Servers that `draftproof deploy` left running: listed and stopped."""

from __future__ import annotations

from pathlib import Path

from tasks.config import DeployConfig
from tasks.deploy.launch import plan
from tasks.deploy.records import ServerRecord, records
from tasks.verdict import BadInput


def kept_servers() -> list[ServerRecord]:
    """Kept servers that run, the oldest first."""
    return [record for record in records() if record.kept and record.alive]


def serves(record: ServerRecord, config: DeployConfig, *, target: Path, drafter: Path, steps: int) -> bool:
    """Whether it was launched as this would be, but for the port. Raises BadInput as a start would."""
    return record.launch == plan(config, target=target, drafter=drafter, steps=steps, port=record.port).digest()


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
