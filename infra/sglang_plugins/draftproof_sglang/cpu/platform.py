"""The platform SGLang runs on: its own CPU platform, with our attention backend as the default."""

from __future__ import annotations

from typing import Any

from sglang.srt.platforms.cpu import CpuSRTPlatform

from draftproof_sglang.cpu import BACKEND


class CpuTorchPlatform(CpuSRTPlatform):
    """Keeps the CPU's enum: SGLang's tree code refuses an out-of-tree one (`kernels/ops/speculative/spec_tree.py`)."""

    def apply_server_args_defaults(self, server_args: Any) -> None:
        """Fill in the attention backend where none was asked for. Raises ValueError for `intel_amx`, whose kernels are missing here."""
        if server_args.attention_backend == "intel_amx":
            raise ValueError(f"--attention-backend intel_amx needs SGLang's native CPU kernels, which are not installed; use {BACKEND}")
        if server_args.attention_backend is None:
            server_args.attention_backend = BACKEND
