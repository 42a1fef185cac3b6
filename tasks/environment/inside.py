"""Runs inside of the interpreter that is looked at, whatever it has: standard library alone, Python 3.8 and newer.

Its source is handed over with `-c`. It reads a request from standard input, `{"modules", "distributions", "import",
"isolated"}`, and prints one line of JSON at the end. Before each real import its name goes to standard error: the
last one there is what killed the interpreter, if something did.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import platform
import sys


def problem_with(name: str, really: bool) -> str | None:
    """Why a module cannot be had, or None. Without `really` only its top-level package is looked for."""
    try:
        if really:
            sys.stderr.write("importing " + name + "\n")
            sys.stderr.flush()
            importlib.import_module(name)
        elif importlib.util.find_spec(name.partition(".")[0]) is None:
            return "no module named " + repr(name.partition(".")[0])
    except BaseException as error:  # a library may raise SystemExit on import
        return type(error).__name__ + ": " + (str(error).splitlines() or [""])[0]
    return None


def version_of(name: str) -> str | None:
    """The installed version of a distribution, or None."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def main() -> None:
    """Answer the request."""
    request = json.load(sys.stdin)
    if request["isolated"]:
        sys.path[:] = [place for place in sys.path if place]  # "" is the working directory
    tasks = importlib.util.find_spec("tasks")
    problems = {name: problem_with(name, name in request["import"]) for name in request["modules"]}
    answer = {
        "executable": sys.executable,
        "python": platform.python_version(),
        "versions": {name: version_of(name) for name in request["distributions"]},
        "missing": {name: problem for name, problem in problems.items() if problem},
        "tasks_from": tasks.origin if tasks else None,
    }
    # Libraries print while they are imported: the answer is the last line.
    sys.stdout.write("\n" + json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
