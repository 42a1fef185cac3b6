"""Secrets that stand in the environment of whole runs, and the search for them in everything that a run writes and shows."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

WORD = "canary7f3a"
_NAMES = ("HF_TOKEN", "MLFLOW_TRACKING_PASSWORD", "PREFECT_API_KEY", "OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "SERVING_KEY")
CANARIES = {name: f"{WORD}-{name.lower().replace('_', '-')}" for name in _NAMES}


def files_that_tell(folder: Path) -> list[str]:
    """Files below `folder` that hold a canary, in whatever form: logs, databases, artifacts, records."""
    return [str(path) for path in sorted(folder.rglob("*")) if path.is_file() and WORD.encode() in path.read_bytes()]


def command_lines_that_tell() -> set[str]:
    """Command lines of living processes, as everybody on this machine can read them."""
    return {line for process in psutil.process_iter() if WORD in (line := _command_line(process))}


def _command_line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


@contextmanager
def command_lines_watched(seconds: float = 1.0) -> Iterator[set[str]]:
    """Inside of it, command lines that tell a canary are gathered here."""
    found: set[str] = set()
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(seconds):
            found.update(command_lines_that_tell())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield found
    finally:
        ended.set()
        watcher.join()
