"""At start: SGLang is the version this was written for, and everything replaced in it is in place. Else the server stops."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from importlib.metadata import version as installed_version

from draftproof_sglang.cpu import SGLANG_VERSION


class Mismatch(RuntimeError):
    """SGLang is not what this package was written for."""

    def __init__(self, what: str) -> None:
        super().__init__(f"draftproof-sglang: {what}; it was written for sglang {SGLANG_VERSION}: install that, or update the plugin")


# Where SGLang binds the stand-in's functions, at import.
_BOUND = {
    "sglang.srt.mem_cache.allocation": {"assign_req_to_token_pool_cpu": "assign_req_to_token_pool_cpu"},
    "sglang.kernels.ops.speculative.cache_locs": {
        "assign_draft_cache_locs_contiguous_cpu": "assign_draft_cache_locs_contiguous_cpu",
        "assign_extend_cache_locs_cpu": "assign_extend_cache_locs_cpu",
    },
    "sglang.kernels.ops.kvcache.cache_move": {"copy_all_layer_kv_cache_cpu": "copy_all_layer_kv_cache_cpu"},
    "sglang.kernels.ops.speculative.eagle": {
        "fill_accept_out_cache_loc_cpu": "fill_accept_out_cache_loc_cpu",
        "fill_bonus_tokens_cpu": "fill_bonus_tokens_cpu",
    },
    "sglang.kernels.ops.speculative.multi_layer_eagle": {"rotate_input_ids_cpu": "rotate_input_ids_cpu"},
    "sglang.kernels.ops.speculative.spec_tree": {
        "sgl_build_tree_kernel_efficient_cpu": "build_tree_kernel_efficient_cpu",
        "sgl_verify_tree_greedy_cpu": "verify_tree_greedy_cpu",
    },
}


def or_exit(*checks: Callable[[], None]) -> None:
    """Run the checks; a mismatch becomes SystemExit with one line, the only thing SGLang's plugin loader does not swallow."""
    try:
        for check in checks:
            check()
    except Mismatch as mismatch:
        raise SystemExit(str(mismatch)) from None


def version() -> None:
    """Raises Mismatch unless SGLang is the very version this was written for."""
    found = installed_version("sglang")
    if found != SGLANG_VERSION:
        raise Mismatch(f"sglang {found} is installed")


def targets() -> None:
    """Before the hooks are set: each function they wrap has the parameters they were written for."""
    from draftproof_sglang.cpu.hooks import HOOKS

    for hook in HOOKS:
        try:
            found = tuple(inspect.signature(pkgutil.resolve_name(hook.target)).parameters)
        except (ImportError, AttributeError) as error:
            raise Mismatch(f"{hook.target} is missing ({error})") from None
        if found != hook.parameters:
            raise Mismatch(f"{hook.target} takes {found}, not {hook.parameters}")


def in_place() -> None:
    """When a backend is built, in the scheduler: the hooks took (SGLang only logs a failed one), and every name is ours."""
    from sglang.srt.plugins.hook_registry import HookRegistry
    from sglang.srt.utils import cpu_has_amx_support

    from draftproof_sglang.cpu.hooks import HOOKS
    from draftproof_sglang.cpu.standin import FUNCTIONS

    unset = sorted({hook.target for hook in HOOKS} - HookRegistry._patched)
    if unset:
        raise Mismatch(f"the hooks on {', '.join(unset)} did not take")
    for module_name, names in _BOUND.items():
        module = importlib.import_module(module_name)
        for name, ours in names.items():
            if getattr(module, name, None) is not FUNCTIONS[ours]:
                raise Mismatch(f"{module_name}.{name} is not the stand-in's function")
    if cpu_has_amx_support():
        raise Mismatch("SGLang takes the native AMX kernels to be there, which they are not")
