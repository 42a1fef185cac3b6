"""The plugin's look at itself. Run by test_inside_sglang.py."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from draftproof_sglang.cpu import BACKEND, hooks, self_check, standin
from sglang.srt.plugins import load_plugins

load_plugins()

from sglang.kernels.ops.speculative import spec_tree  # noqa: E402
from sglang.srt.plugins.hook_registry import HookRegistry  # noqa: E402


def test_everything_is_in_place() -> None:
    self_check.or_exit(self_check.version, self_check.targets, self_check.in_place)


def test_amx_branches_are_off_also_where_the_cpu_has_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.utils import common

    monkeypatch.setattr(common, "is_amx_tile_supported", True)
    assert not common.cpu_has_amx_support()


def test_a_wrong_version_stops_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_check, "installed_version", lambda _: "0.5.24")
    with pytest.raises(SystemExit, match=r"sglang 0\.5\.24 is installed; it was written for sglang 0\.5\.23"):
        self_check.or_exit(self_check.version)


def test_a_hooked_function_that_changed_stops_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "HOOKS", (replace(hooks.HOOKS[0], parameters=("self",)),))
    with pytest.raises(SystemExit, match="takes"):
        self_check.or_exit(self_check.targets)
    monkeypatch.setattr(hooks, "HOOKS", (replace(hooks.HOOKS[0], target="sglang.srt.speculative.draft_utils.Gone.method"),))
    with pytest.raises(SystemExit, match="is missing"):
        self_check.or_exit(self_check.targets)


def test_a_hook_that_did_not_take_and_a_name_that_is_not_ours_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(HookRegistry, "_patched", set())
        with pytest.raises(self_check.Mismatch, match="did not take"):
            self_check.in_place()
    monkeypatch.setattr(spec_tree, "sgl_verify_tree_greedy_cpu", lambda: None)
    with pytest.raises(self_check.Mismatch, match="sgl_verify_tree_greedy_cpu"):
        self_check.in_place()


def test_every_function_of_the_standin_is_checked_where_sglang_binds_it() -> None:
    assert {ours for names in self_check._BOUND.values() for ours in names.values()} == set(standin.FUNCTIONS)


@pytest.mark.parametrize(("asked", "becomes"), [(None, BACKEND), ("intel_amx", BACKEND), ("torch_native", "torch_native")])
def test_only_sglangs_own_default_is_replaced(asked: str | None, becomes: str) -> None:
    from sglang.srt.platforms import current_platform

    args = SimpleNamespace(attention_backend=asked)
    current_platform.apply_server_args_defaults(args)
    assert args.attention_backend == becomes
