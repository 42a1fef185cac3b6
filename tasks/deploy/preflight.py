"""A launch looked at without starting it: the refusals, and SGLang's own argument parser and resolution in its own interpreter."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from tasks.deploy.contract import compare_flags
from tasks.deploy.launch import Launch
from tasks.deploy.refusals import refusals
from tasks.verdict import Check, Outcome
from tasks.wiring.kinds import Kind

_SECONDS = 180
# What `python -m sglang.launch_server` does before it starts anything (sglang 0.5.23, launch_server.py).
_RESOLVE = """
import json, sys
from sglang.srt.plugins import load_plugins
load_plugins()
from sglang.srt.server_args import prepare_server_args
arguments = prepare_server_args(sys.argv[2:])
arguments.resolve_once()
with open(sys.argv[1], "w") as out:
    json.dump(arguments.resolved_dict(), out, default=str)
"""


def preflight(launch: Launch) -> list[Check]:
    """Every check of a launch that needs no server: pure rules, then SGLang's parser and resolution (a subprocess, 10 to 20 s).

    Raises BadInput for a model folder without a readable config.json.
    """
    checks = refusals(launch.flags)
    if any(check.verdict is Outcome.FAIL for check in checks):
        return checks
    resolved = resolve(launch)
    return [*checks, resolved] if isinstance(resolved, Check) else [*checks, *compare_flags(launch, resolved)]


def resolve(launch: Launch) -> dict[str, Any] | Check:
    """What SGLang would make of the command, or the FAIL with its own words if it does not take it."""
    with tempfile.TemporaryDirectory(prefix="draftproof-") as scratch:
        out = Path(scratch) / "resolved.json"
        try:
            done = subprocess.run(
                [launch.python, "-c", _RESOLVE, str(out), *launch.arguments()],
                check=False,
                cwd=scratch,
                env=launch.full_environment() | {"TMPDIR": scratch},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_SECONDS,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return _refused(launch.python, str(error))
        if done.returncode != 0:
            return _refused(launch.python, "\n".join(done.stderr.splitlines()[-8:]))
        resolved: dict[str, Any] = json.loads(out.read_text())
        return resolved


def _refused(python: str, words: str) -> Check:
    return Check(
        name="SGLang takes the command",
        verdict=Outcome.FAIL,
        kind=Kind.LAUNCH_FLAGS,
        message=f"SGLang in {python} does not take the command:\n{words}",
    )
