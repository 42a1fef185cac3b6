"""A module in the place of `sgl_kernel`, where the native one has no CPU functions.

Only the functions that SGLang's EAGLE path imports by name are there. `convert_weight_packed` is left out on purpose: where it is
missing, `cpu_has_amx_support()` is false even on a CPU with AMX tiles (`sglang/srt/utils/common.py:354-372`), and no branch that needs
the native kernels is taken.
"""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Callable

from draftproof_sglang.cpu import slots, tree

FUNCTIONS: dict[str, Callable[..., object]] = {
    function.__name__: function
    for function in (
        slots.assign_draft_cache_locs_contiguous_cpu,
        slots.assign_extend_cache_locs_cpu,
        slots.assign_req_to_token_pool_cpu,
        slots.copy_all_layer_kv_cache_cpu,
        slots.fill_accept_out_cache_loc_cpu,
        slots.fill_bonus_tokens_cpu,
        slots.rotate_input_ids_cpu,
        tree.build_tree_kernel_efficient_cpu,
        tree.verify_tree_greedy_cpu,
    )
}
_VERSION = "0+draftproof"


def cpu_engine_asked() -> bool:
    """Whether the launch asks for SGLang's CPU engine, in SGLang's own way (`sglang/srt/utils/common.py`, `is_cpu`)."""
    return os.environ.get("SGLANG_USE_CPU_ENGINE", "0") == "1"


def installed() -> bool:
    """Whether the stand-in is this process's `sgl_kernel`."""
    return getattr(sys.modules.get("sgl_kernel"), "__version__", None) == _VERSION


def needed() -> bool:
    """Whether this process runs SGLang's CPU engine without native kernels that work, which would be left alone."""
    return cpu_engine_asked() and (installed() or not _native_works())


def install() -> None:
    """Put the stand-in where SGLang will look."""
    module = types.ModuleType("sgl_kernel", "Draftproof's pure PyTorch stand-in")
    module.__dict__.update(FUNCTIONS, __version__=_VERSION, __path__=[])  # a path: submodules are asked for, and not found
    sys.modules["sgl_kernel"] = module


def _native_works() -> bool:
    """The CUDA wheel either fails to import (no libcuda) or imports without the CPU functions."""
    try:
        import sgl_kernel
    except Exception:  # whatever it dies of, it does not work; ImportError and OSError were seen
        for name in [name for name in sys.modules if name.partition(".")[0] == "sgl_kernel"]:
            del sys.modules[name]
        return False
    return all(hasattr(sgl_kernel, name) for name in FUNCTIONS)
