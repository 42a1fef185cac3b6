"""Processes, known for good: by id, start time and the boot they ran in.

An id alone is given to another process later, and a name belongs to anybody.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Self

import psutil
from pydantic import BaseModel, ConfigDict, Field

# What a process may take to end its children before it is killed together with them.
END_SECONDS = 30.0


class Process(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    pid: int
    start: int = Field(description="Clock ticks since boot.")
    boot: str

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """The living process with this id, or None."""
        start = _start_ticks(pid)
        return None if start is None else cls(pid=pid, start=start, boot=_boot())

    @property
    def alive(self) -> bool:
        return self.boot == _boot() and _start_ticks(self.pid) == self.start

    def signal(self, number: int) -> None:
        """Send a signal if it is still this process."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


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


def _boot() -> str:
    """Empty in a sandbox that does not tell: process id and start time say almost as much."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _start_ticks(pid: int) -> int | None:
    """Start time of a living process in clock ticks since boot (proc(5), field 22 of stat; the name before may hold spaces).

    None for none or a zombie. `tasks/deploy/supervisor.py`, which may import nothing of ours, has the same.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])
