"""Servers that were started, on disk: so that what an earlier run left behind is found and ended, and kept ones are not."""

from __future__ import annotations

import contextlib
import shutil
from operator import itemgetter
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tasks.processes import Process, end_processes
from tasks.report import Report
from tasks.store import home, write_atomic


class ServerRecord(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    url: str
    port: int
    log: Path
    scratch: Path = Field(description="The server's temporary folder.")
    target: Path
    drafter: Path | None
    steps: int | None
    owner: Process = Field(description="Who started it; once it is gone, a server that is not kept is an orphan.")
    supervisor: Process
    processes: list[Process] = Field(description="Server, scheduler, detokenizer; the supervisor is not among them.")
    launch: str = Field(default="", description="`Launch.digest()`: how it computes, and whom it answers.")
    kept: bool = Field(default=False, description="It was proved and is to stay when its owner goes.")

    @property
    def alive(self) -> bool:
        return any(p.alive for p in (self.supervisor, *self.processes))

    @property
    def orphan(self) -> bool:
        return not self.owner.alive and not (self.kept and self.alive)

    def save(self) -> None:
        write_atomic(_folder() / f"{self.id}.json", self.model_dump_json(indent=1))

    def end(self) -> None:
        """End what still runs of it, and forget it. Returns when nothing of it is left."""
        end_processes(self.supervisor, self.processes)
        shutil.rmtree(self.scratch, ignore_errors=True)
        (_folder() / f"{self.id}.json").unlink(missing_ok=True)


def records() -> list[ServerRecord]:
    """Every server on record, the oldest first. A file that is no record is left alone."""
    found = []
    for path in _folder().glob("*.json"):
        with contextlib.suppress(OSError, ValidationError):  # another start may be ending the same orphan
            found.append((path.stat().st_mtime, ServerRecord.model_validate_json(path.read_text())))
    return [record for _, record in sorted(found, key=itemgetter(0))]


def end_orphans(report: Report) -> int:
    """End servers whose owner is gone, unless they are kept; how many there were."""
    orphans = [record for record in records() if record.orphan]
    for record in orphans:
        if record.alive:
            report.say(f"ending a server that an earlier run left behind: {record.url} (process {record.supervisor.pid})")
        record.end()
    return len(orphans)


def _folder() -> Path:
    return home() / "servers"
