"""Which process owns a run, so that a later one can tell whether it still lives."""

from __future__ import annotations

import os
import socket

from pydantic import ValidationError

from tasks.processes import Process

HOST, PROCESS = "draftproof.host", "draftproof.process"


def tags() -> dict[str, str]:
    """Tags that name this process for good."""
    here = Process.of(os.getpid())
    assert here is not None, "we are alive"
    return {HOST: socket.gethostname(), PROCESS: here.model_dump_json()}


def is_dead(given: dict[str, str]) -> bool:
    """Whether the owner ran on this machine and is gone. A run of another machine, or of nobody we know, is not dead."""
    if given.get(HOST) != socket.gethostname() or PROCESS not in given:
        return False
    try:
        return not Process.model_validate_json(given[PROCESS]).alive
    except ValidationError:
        return False
