"""Runs as a script between us and a server: whatever becomes of us, nothing of the server is left.

`python -I -S supervisor.py OWNER_PID OWNER_START GRACE COMMAND…` starts COMMAND and prints its process id. It
ends the server with all its descendants when it is told to (SIGTERM), when the owner is gone in whatever way,
and when the server itself ends. SIGUSR1 releases the server: the owner may go, and it stays.

Only the standard library is imported: it stands beside the server all the time (8 MB), in the server's session.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_POLL_SECONDS = 0.25


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def _die_with_parent() -> None:
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def start_ticks(pid: int) -> int | None:
    """Start time of a living process in clock ticks since boot (field 22 of /proc/<pid>/stat); None for none or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _descendants(pid: int) -> list[int]:
    """Processes below `pid`, each before its own children. /proc/<pid>/stat is everywhere; task/<tid>/children is not."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for parent in found:
        found += [child for child, its_parent in parents.items() if its_parent == parent]
    return found[1:]


def _reap(server: int, status: int | None) -> tuple[bool, int | None]:
    """Collect ended children; whether any is left, and the server's exit status once it is known."""
    while True:
        try:
            pid, wait_status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False, status
        if pid == 0:
            return True, status
        if pid == server:
            status = os.waitstatus_to_exitcode(wait_status)


def _end(server: int, grace: float, status: int | None) -> int | None:
    """SIGTERM to the server, SIGKILL to whatever is left after `grace` seconds, until no descendant is left."""
    if status is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(server, signal.SIGTERM)
    deadline = time.monotonic() + (grace if status is None else 0)
    while True:
        left, status = _reap(server, status)
        if not left:
            return status
        if status is not None or time.monotonic() > deadline:
            for pid in _descendants(os.getpid()):  # orphans too: we are their subreaper
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def main() -> int:
    """Watch until there is a reason to end the server; its exit status, or 128 + signal."""
    owner, owner_start, grace, command = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4:]
    asked_to_end, released = [], []
    signal.signal(signal.SIGTERM, lambda *_: asked_to_end.append(True))
    signal.signal(signal.SIGUSR1, lambda *_: released.append(True))
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    # If we are killed, the kernel kills the server, and SGLang's own children ask for the same of it.
    process = subprocess.Popen(command, stdout=sys.stderr, preexec_fn=_die_with_parent)  # noqa: PLW1509 (no threads here)
    server = process.pid
    sys.stdout.write(f"{server}\n")
    sys.stdout.flush()
    status: int | None = None
    while status is None and not asked_to_end and (released or start_ticks(owner) == owner_start):
        time.sleep(_POLL_SECONDS)
        _, status = _reap(server, status)
    status = _end(server, grace, status)
    return 0 if status is None else (128 - status if status < 0 else status)


if __name__ == "__main__":
    sys.exit(main())
