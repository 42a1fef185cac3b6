"""The command line as a user meets it: one clear line for each mistake, the right exit status, before work is spent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

PROJECT = Path(__file__).resolve().parents[2]
GOOD = {"target": {"source": "target", "name": "tiny"}}


def draftproof(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "flows.cli", *map(str, arguments)],
        cwd=PROJECT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def written(folder: Path, config: object, name: str = "config.yaml") -> Path:
    path = folder / name
    path.write_text(config if isinstance(config, str) else yaml.safe_dump(config), encoding="utf-8")
    return path


CASES = {
    "no file": (None, [], "config.yaml: found No such file"),
    "no YAML": ("a: [", [], "found no YAML"),
    "no mapping": ("- a", [], "expected a mapping of sections"),
    "an unknown key": ({**GOOD, "train": {"epoch": 2}}, [], "unknown key 'train.epoch'"),
    "an unknown section": ({**GOOD, "trian": {}}, [], "unknown key 'trian'"),
    "a missing section": ({}, [], "missing key 'target'"),
    "a value of the wrong type": ({**GOOD, "train": {"epochs": "many"}}, [], "train.epochs"),
    "a missing prompt file": ({**GOOD, "data": {"prompts": "nowhere.jsonl"}}, [], "data.prompts: found no file"),
    "a missing workload": ({**GOOD, "benchmark": {"workloads": ["nowhere.jsonl"]}}, [], "benchmark.workloads: found no file"),
    "an override without a value": (GOOD, ["--set", "train.epochs"], "--set train.epochs: found no '='"),
    "an override of an unknown key": (GOOD, ["--set", "train.epoch=2"], "unknown key 'train.epoch'"),
    "an unknown stage": (GOOD, ["--refresh", "training"], "--refresh: found training; expected target, data"),
    "a name with a slash": ({"target": {"source": "target", "name": "owner/model"}}, [], "target.name"),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_named_before_anything_is_started(case: str, tmp_path: Path) -> None:
    config, options, expected = CASES[case]
    path = tmp_path / "config.yaml" if config is None else written(tmp_path, config)
    began = time.monotonic()
    done = draftproof("run", path, "--json", tmp_path / "out.json", *options)
    assert done.returncode == 2 and expected in done.stderr, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1 and "Traceback" not in done.stderr
    assert time.monotonic() - began < 60
    report = json.loads((tmp_path / "out.json").read_text())
    assert (report["verdict"], report["kind"], report["exit_status"]) == ("ERROR", "bad-input", 2)
    assert not any((Path(os.environ["DRAFTPROOF_HOME"])).iterdir())


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["run"], "Missing parameter: config"),
        (["run", "x.yaml", "--sett", "a=b"], "No such option"),
        (["nothing"], "No such command"),
        (["deploy"], "expected CONFIG or MODEL[@ALIAS]"),
        (["deploy", "tiny-eagle3@best"], "found alias 'best'; expected champion or challenger"),
        (["deploy", "nowhere.yaml"], "nowhere.yaml: found No such file"),
        (["verify", "nowhere", "--target", "nowhere"], "nowhere: found no folder"),
        (["doctor", "nowhere.yaml"], "nowhere.yaml: found No such file"),
    ],
)
def test_mistakes_on_the_command_line(arguments: list[str], expected: str) -> None:
    done = draftproof(*arguments)
    assert done.returncode == 2 and expected in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


def test_a_model_that_was_never_promoted() -> None:
    done = draftproof("deploy", "tiny-eagle3")
    assert done.returncode == 2 and "tiny-eagle3@champion: found no such model or alias" in done.stderr, done.stderr


def test_stop_without_a_server() -> None:
    assert draftproof("deploy", "--stop").returncode == 0
    done = draftproof("deploy", "tiny-eagle3", "--stop")
    assert done.returncode == 2 and "no server of it" in done.stderr


def test_json_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = draftproof("run", tmp_path / "no.yaml", "--json", tmp_path / "file" / "out.json")
    assert done.returncode == 2 and "--json" in done.stderr and "Traceback" not in done.stderr


def test_nohup_is_honoured() -> None:
    """A run that was told to outlive its terminal does; the other signals still end it."""
    code = "import signal, flows.cli as c; c._status = lambda _: print(signal.getsignal(signal.SIGHUP), signal.getsignal(signal.SIGTERM))"
    ignoring = f"import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); {code}; c.main([])"
    told = subprocess.run([sys.executable, "-c", ignoring], cwd=PROJECT, capture_output=True, text=True, check=False).stdout
    assert told.startswith("1 <function _stop"), told


def test_a_commit_is_the_projects_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flows import pipeline

    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    subprocess.run(["git", "-C", str(tmp_path), *identity, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    (tmp_path / "unpacked").mkdir()
    for folder, known in ((tmp_path, True), (tmp_path / "unpacked", False)):
        monkeypatch.setattr(pipeline, "_PROJECT", folder)
        assert (pipeline.commit() != "unknown") is known


def test_help_imports_nothing_heavy() -> None:
    code = "import sys, flows.cli; print([m for m in ('torch', 'prefect', 'mlflow', 'transformers', 'sglang') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
