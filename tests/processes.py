"""Processes of a run, found by the home that they were started with."""

from __future__ import annotations

import os
from pathlib import Path

import psutil


def processes_of(home: Path) -> list[psutil.Process]:
    """Every living process that was started with this DRAFTPROOF_HOME, but for the test itself."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("DRAFTPROOF_HOME") == str(home) and process.pid != os.getpid():
                found.append(process)
        except (psutil.AccessDenied, psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return found
