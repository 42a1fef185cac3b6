"""Which process owns a run, so that a later one can tell whether it still lives."""

from __future__ import annotations

import os
import socket
from pathlib import Path

HOST, PROCESS = "draftproof.host", "draftproof.process"


def tags() -> dict[str, str]:
    """Tags that name this process for good: process ids are reused, and a reboot starts them anew."""
    return {HOST: socket.gethostname(), PROCESS: f"{_boot()}:{os.getpid()}:{_start_ticks(os.getpid())}"}


def is_dead(given: dict[str, str]) -> bool:
    """Whether the owner ran on this machine and is gone. A run of another machine, or of nobody we know, is not dead."""
    if given.get(HOST) != socket.gethostname() or PROCESS not in given:
        return False
    boot, pid, ticks = given[PROCESS].split(":")
    return boot != _boot() or _start_ticks(int(pid)) != ticks


def _boot() -> str:
    """Empty in a sandbox that does not tell: process id and start time say almost as much."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _start_ticks(pid: int) -> str | None:
    """Clock ticks from boot to the process's start (field 22 of proc(5) stat; the name before may hold spaces); None = gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]
