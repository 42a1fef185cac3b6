"""Asking an interpreter what it has, in a process of its own: nothing is imported into ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from tasks.config import Config
from tasks.environment.needs import DISTRIBUTIONS, never_imported, stages_of
from tasks.environment.record import Interpreter, ProcessName
from tasks.verdict import BadInput, MachineTrouble

_SCRIPT = Path(__file__).with_name("inside.py")

# Importing SGLang takes 12 s and speculators 20 s on two busy cores; this is for a cold disk.
_SECONDS = {False: 60, True: 300}


def probe(process: ProcessName, config: Config, *, imports: bool) -> Interpreter:
    """What the interpreter of a kind of process has.

    With `imports` every module is really imported, else its package is only looked for.
    Raises BadInput when `deploy.python` is no interpreter, MachineTrouble when it does not answer in time.
    """
    serving = process == "serving"
    executable = (config.deploy.python if serving else None) or sys.executable
    modules = sorted({module for needed in stages_of(process, config).values() for module in needed})
    request = {
        "modules": modules,
        "import": [module for module in modules if imports and module not in never_imported(config)],
        "distributions": DISTRIBUTIONS,
        "isolated": serving,
    }
    # A server never sees the caller's PYTHON* variables nor its working directory (tasks/deploy/launch.py).
    environment = {name: value for name, value in os.environ.items() if not (serving and name.startswith("PYTHON"))}
    if serving:
        environment |= {"SGLANG_USE_CPU_ENGINE": "1"} if config.deploy.device == "cpu" else {}
    begun = time.monotonic()
    answer = _ask(executable, request, environment, _SECONDS[imports])
    return Interpreter.model_validate({"process": process, "seconds": time.monotonic() - begun, **answer})


def _ask(executable: str, request: dict[str, object], environment: dict[str, str], seconds: int) -> dict[str, object]:
    try:
        done = subprocess.run(
            [executable, "-c", _SCRIPT.read_text(encoding="utf-8")],
            input=json.dumps(request),
            env=environment,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except OSError as error:
        raise BadInput(
            "deploy.python", found=f"{executable} ({error.strerror})", expected="a Python interpreter", do="Mend the path."
        ) from error
    except subprocess.TimeoutExpired as error:
        raise MachineTrouble(f"{executable} did not tell within {seconds} s what it has") from error
    try:
        answer: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        return _died(executable, done)
    return answer


def _died(executable: str, done: subprocess.CompletedProcess[str]) -> dict[str, object]:
    """The record of an interpreter that died: at an import, which is named, or before it ran our script."""
    begun = [line.removeprefix("importing ") for line in done.stderr.splitlines() if line.startswith("importing ")]
    if not begun:
        last = (done.stderr.splitlines() or ["nothing on standard error"])[-1]
        found = f"{executable}, which ended with status {done.returncode}: {last}"
        raise BadInput("deploy.python", found=found, expected="a Python interpreter, 3.8 or newer", do="Mend the path.")
    missing = {begun[-1]: f"the interpreter died while importing it (status {done.returncode})"}
    return {"executable": executable, "python": "unknown", "versions": {}, "missing": missing, "tasks_from": None}
