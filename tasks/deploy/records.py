"""Servers that were started, on disk: so that what an earlier run left behind is found and ended, and kept ones are not.

A process is known by its id, its start time and the boot it ran in: an id alone is given to another process
later, and a name belongs to anybody.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from operator import itemgetter
from pathlib import Path
from typing import Self

import psutil
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tasks.deploy.supervisor import start_ticks
from tasks.report import Report
from tasks.store import home, write_atomic

# What a supervisor may take to end its server before it is killed together with it.
END_SECONDS = 30.0


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Process(_Record):
    pid: int
    start: int = Field(description="Clock ticks since boot.")
    boot: str

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """The living process with this id, or None."""
        start = start_ticks(pid)
        return None if start is None else cls(pid=pid, start=start, boot=_boot())

    @property
    def alive(self) -> bool:
        return self.boot == _boot() and start_ticks(self.pid) == self.start

    def signal(self, number: int) -> None:
        """Send a signal if it is still this process."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


class ServerRecord(_Record):
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


def family(pid: int) -> list[Process]:
    """The living process `pid` and all its descendants."""
    try:
        members = [pid, *(p.pid for p in psutil.Process(pid).children(recursive=True))]
    except psutil.NoSuchProcess:
        return []
    return [p for p in map(Process.of, members) if p is not None]


def end_processes(supervisor: Process, processes: list[Process]) -> None:
    """Ask the supervisor to end its server; kill what is left when it does not manage, or was killed itself."""
    everything = {p.pid: p for known in (supervisor, *processes) if known.alive for p in (known, *family(known.pid))}.values()
    supervisor.signal(signal.SIGTERM)
    deadline = time.monotonic() + (END_SECONDS if supervisor.alive else 0)
    while supervisor.alive and time.monotonic() < deadline:
        time.sleep(0.05)
    while left := [p for p in everything if p.alive]:
        for process in left:
            process.signal(signal.SIGKILL)
        time.sleep(0.05)


def _folder() -> Path:
    return home() / "servers"


def _boot() -> str:
    """Empty in a sandbox that does not tell: process id and start time say almost as much."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
