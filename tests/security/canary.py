"""Secrets that stand in the environment of whole runs, and the search for them in everything that a run writes and shows."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

import psutil

# Another one for each of pytest's workers: what the tests of one of them tell on purpose is nothing that the other has to find.
WORD = f"canary7f3a{os.environ.get('PYTEST_XDIST_WORKER', '')}"
_NAMES = ("HF_TOKEN", "MLFLOW_TRACKING_PASSWORD", "PREFECT_API_KEY", "OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "SERVING_KEY")
CANARIES = {name: f"{WORD}-{name.lower().replace('_', '-')}" for name in _NAMES}


def files_that_tell(folder: Path) -> list[str]:
    """Files below `folder` that hold a canary, in whatever form: logs, databases, artifacts, records."""
    return [str(path) for path in sorted(folder.rglob("*")) if path.is_file() and WORD.encode() in path.read_bytes()]


def command_lines_that_tell() -> set[str]:
    """Command lines of living processes, as everybody on this machine can read them."""
    found = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            found.add(" ".join(process.cmdline()))
    return {line for line in found if WORD in line}


def listening(processes: Iterable[psutil.Process]) -> set[str]:
    """`address:port` of every internet socket on which these processes listen."""
    found = set()
    for process in processes:
        with suppress(psutil.Error):
            connections = process.net_connections(kind="inet")
            found |= {f"{c.laddr.ip}:{c.laddr.port}" for c in connections if c.status == psutil.CONN_LISTEN}
    return found


def beyond_this_machine(sockets: Iterable[str]) -> list[str]:
    """Those of `listening` that other machines can reach."""
    return sorted(socket for socket in sockets if not ip_address(socket.rpartition(":")[0]).is_loopback)


@dataclass
class Seen:
    """What anybody could see of a run from outside of it, while it ran."""

    command_lines: set[str] = field(default_factory=set)
    """Only those that tell a canary."""
    sockets: set[str] = field(default_factory=set)


@contextmanager
def watched(seconds: float = 1.0) -> Iterator[Seen]:
    """Looks again and again at all command lines, and at the sockets of those descendants of this process that are born inside of it."""
    seen, ended = Seen(), threading.Event()
    before = set(psutil.Process().children(recursive=True))  # servers that other tests share

    def watch() -> None:
        while not ended.wait(seconds):
            seen.command_lines |= command_lines_that_tell()
            seen.sockets |= listening(set(psutil.Process().children(recursive=True)) - before)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield seen
    finally:
        ended.set()
        watcher.join()
