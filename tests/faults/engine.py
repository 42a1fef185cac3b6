"""Launches of SGLang's scheduler in one process (`engine_child.py`), one child for a module of tests."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from tasks.deploy.launch import Launch


class Engine:
    """Answers probe requests as a server of a launch would. Every launch has to have the environment of the first."""

    def __init__(self, launch: Launch) -> None:
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (as long as the child)
        self._environment = launch.environment
        self._child = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("engine_child.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=launch.full_environment(),
        )

    def serve(self, launch: Launch, prompts: Sequence[list[int]], new_tokens: int) -> dict[str, Any]:
        """`resolved` arguments and `answers`. Raises AssertionError, with the end of the log, where SGLang failed."""
        assert launch.environment == self._environment
        request = {"arguments": launch.command()[3:], "prompts": list(prompts), "new_tokens": new_tokens}
        assert self._child.stdin is not None and self._child.stdout is not None
        self._child.stdin.write(json.dumps(request) + "\n")
        self._child.stdin.flush()
        found: dict[str, Any] = json.loads(self._child.stdout.readline() or '{"error": "gone"}')
        if "error" in found:
            self._log.seek(0)
            raise AssertionError(f"{found}\n{self._log.read()[-6000:]}")
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.kill()
        self._child.communicate()
        self._log.close()
