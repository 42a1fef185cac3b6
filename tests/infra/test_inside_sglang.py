"""The checks that need SGLang itself, in one process of their own: the plugin and Triton's interpreter are set by the environment."""

import os
import subprocess
import sys
from pathlib import Path

CHECKS = sorted(map(str, Path(__file__).with_name("inside").glob("[a-z]*.py")))


def plugged(**changes: str) -> dict[str, str]:
    engine = {"SGLANG_USE_CPU_ENGINE": "1", "SGLANG_PLATFORM": "draftproof_cpu", "TORCHDYNAMO_DISABLE": "1", "TRITON_INTERPRET": "1"}
    return {**os.environ, **engine, **changes}


def run(command: list[str], **changes: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], env=plugged(**changes), capture_output=True, text=True, timeout=300)


def test_the_plugin_inside_sglang() -> None:
    done = run(["-m", "pytest", "-q", "-p", "no:cacheprovider", *CHECKS])
    assert done.returncode == 0, done.stdout[-6000:]


def test_a_wrong_version_ends_the_process_with_one_line() -> None:
    code = (
        "from draftproof_sglang.cpu import self_check; self_check.installed_version = lambda _: '0.5.24';"
        "from sglang.srt.plugins import load_plugins; load_plugins()"
    )
    done = run(["-c", code], SGLANG_PLATFORM="")
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].startswith("draftproof-sglang: sglang 0.5.24 is installed")


def test_it_stays_out_of_the_way_where_the_cpu_engine_was_not_asked_for() -> None:
    code = (
        "import sys; from sglang.srt.plugins import load_plugins; load_plugins();"
        "from sglang.srt.plugins.hook_registry import HookRegistry;"
        "from draftproof_sglang.cpu import hooks, standin;"
        "assert not standin.installed(); assert not {hook.target for hook in hooks.HOOKS} & HookRegistry._patched"
    )
    done = run(["-c", code], SGLANG_USE_CPU_ENGINE="0", SGLANG_PLATFORM="")
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_native_kernel_that_works_is_left_alone(tmp_path: Path) -> None:
    names = "from draftproof_sglang.cpu import standin; print(*standin.FUNCTIONS)"
    functions = run(["-c", names]).stdout.split()
    (tmp_path / "sgl_kernel.py").write_text("".join(f"def {name}(): ...\n" for name in functions))
    code = (
        "from draftproof_sglang.cpu import entry_points, standin; assert entry_points.activate() == entry_points.IN_TREE_PLATFORM;"
        "assert not standin.installed(); entry_points.register()"
    )
    done = run(["-c", code], PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr[-3000:]
