"""Where a stage computes and in which dtype: `auto` resolved the same way everywhere, once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from tasks.verdict import BadInput

_CGROUP = Path("/sys/fs/cgroup")


class Placement(BaseModel):
    """A resolved device and compute dtype; part of every cache key whose product depends on rounding."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    device: Literal["cpu", "cuda"]
    dtype: Literal["float32", "bfloat16"]


def place(device: str = "auto", dtype: str = "auto") -> Placement:
    """Resolve `auto`: the GPU if there is one; bfloat16 where the device multiplies it natively.

    Deterministic per machine. Raises BadInput for a GPU that is not there.
    """
    import torch

    has_gpu = torch.cuda.is_available()
    if device == "cuda" and not has_gpu:
        raise BadInput(
            "device", found="cuda, but torch sees no GPU", expected="cpu or auto", do="Set device: auto, or install a CUDA torch."
        )
    resolved = device if device != "auto" else ("cuda" if has_gpu else "cpu")
    if dtype == "auto":
        dtype = "bfloat16" if (torch.cuda.is_bf16_supported() if resolved == "cuda" else cpu_multiplies_bfloat16()) else "float32"
    return Placement.model_validate({"device": resolved, "dtype": dtype})


def cores() -> int:
    """Cores that this process may use: those of its affinity, fewer where a container's CPU quota allows fewer (at least one)."""
    usable = len(os.sched_getaffinity(0))
    quota = _quota()
    return usable if quota is None else max(1, min(usable, int(quota)))


def _quota() -> float | None:
    """Cores' worth of time that the control group gives (version 2: `cpu.max`, version 1: `cpu.cfs_*`); None = no limit."""
    try:
        quota, period = (_CGROUP / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota, period = ((_CGROUP / "cpu" / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        except OSError:
            return None
    return None if quota in ("max", "-1") else int(quota) / int(period)


def cpu_multiplies_bfloat16() -> bool:
    """Whether this CPU has bfloat16 dot products (AMX, AVX512-BF16); elsewhere oneDNN emulates them, slower than float32."""
    import torch

    return bool(torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported())
