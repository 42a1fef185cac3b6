"""The platform SGLang runs on: its own CPU platform, with our attention backend as the default."""

from __future__ import annotations

from typing import Any

from sglang.srt.platforms.cpu import CpuSRTPlatform

from draftproof_sglang.cpu import BACKEND


class CpuTorchPlatform(CpuSRTPlatform):
    """Keeps the CPU's enum: SGLang's tree code refuses an out-of-tree one (`kernels/ops/speculative/spec_tree.py`)."""

    def apply_server_args_defaults(self, server_args: Any) -> None:
        """Put our backend where SGLang has put its default for x86-64.

        That is `intel_amx` (`arg_groups/platform_hook.py`, `handle_cpu_backends`, which runs before), whose kernels are missing here, so
        SGLang would turn it into `torch_native` later, which cannot speculate. Any other backend was asked for, and stays.
        """
        if server_args.attention_backend in (None, "intel_amx"):
            server_args.attention_backend = BACKEND
