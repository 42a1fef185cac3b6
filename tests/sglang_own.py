"""Asks the pinned SGLang's own code (`sglang_child.py`), in one process of its own for the whole session."""

from __future__ import annotations

import atexit
import functools
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any


@functools.cache
def _child() -> tuple[subprocess.Popen[str], Any]:
    """Importing SGLang takes 20 s and patches transformers: once, and not in the process of the tests."""
    log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (as long as the child)
    child = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("sglang_child.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
    )
    atexit.register(child.kill)
    return child, log


def start() -> None:
    """Start it without waiting: other tests can run while it imports."""
    _child()


def ask(request: dict[str, Any]) -> dict[str, Any]:
    """One answer. Raises AssertionError with the end of its log when the child died."""
    child, log = _child()
    assert child.stdin and child.stdout
    try:
        child.stdin.write(json.dumps(request) + "\n")
        child.stdin.flush()
        line = child.stdout.readline()
    except BrokenPipeError:
        line = ""
    if not line:
        log.seek(0)
        raise AssertionError(f"SGLang's process ended:\n{log.read()[-4000:]}")
    answer: dict[str, Any] = json.loads(line)
    return answer
