"""The story's shadowed import is found by `make lint`, before anything runs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]

WITH_OUTER_IMPORT = """
import json


def accept_length(text: str) -> str:
    counts = json.loads(text)
    import json

    return json.dumps(counts)
"""

WITHOUT_OUTER_IMPORT = WITH_OUTER_IMPORT.replace("import json\n\n\n", "", 1)

IMPORT_FIRST = """
def accept_length(text: str) -> str:
    import json

    return json.dumps(json.loads(text))
"""


def findings(source: str) -> set[str]:
    """Codes that ruff gives the source under this project's own configuration, as if it stood in tasks/verify."""
    command = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--no-cache",
        "--output-format=json",
        "--stdin-filename",
        "tasks/verify/sample.py",
        "-",
    ]
    done = subprocess.run(command, input=source, capture_output=True, text=True, cwd=PROJECT, check=False)
    assert done.stderr == ""
    return {str(finding["code"]) for finding in json.loads(done.stdout)}


@pytest.mark.parametrize(("source", "code"), [(WITH_OUTER_IMPORT, "F823"), (WITHOUT_OUTER_IMPORT, "F821")])
def test_a_function_that_imports_a_name_it_has_already_used(source: str, code: str) -> None:
    with pytest.raises(UnboundLocalError):
        _run(source)
    assert code in findings(source)


def test_a_function_that_imports_first() -> None:
    assert _run(IMPORT_FIRST) == "{}"
    assert not {code for code in findings(IMPORT_FIRST) if code.startswith("F8")}


def _run(source: str) -> object:
    names: dict[str, object] = {}
    exec(source, names)
    function = names["accept_length"]
    assert callable(function)
    return function("{}")
