"""What is changed inside SGLang, besides the stand-in: a new attention backend, and two hooks."""

from __future__ import annotations

from typing import Any

from draftproof_sglang.cpu import BACKEND, refusals

DRAFT_BACKENDS = "sglang.srt.speculative.draft_utils.DraftBackendFactory._create_backend"
SAMPLING_VERIFY = "sglang.srt.sampling.sampling_params.SamplingParams.verify"

# Each hooked function with the parameters it was written for.
TARGETS = {
    DRAFT_BACKENDS: ("self", "backend_name", "backend_map", "error_template", "stamps_children"),
    SAMPLING_VERIFY: ("self", "vocab_size"),
}


def register() -> None:
    """Register all of it; SGLang applies the hooks when every plugin has been called."""
    from sglang.srt.arg_groups.choices import ATTENTION_BACKEND_CHOICES, add_attention_backend_choices
    from sglang.srt.layers.attention.attention_registry import register_attention_backend
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    if BACKEND not in ATTENTION_BACKEND_CHOICES:
        add_attention_backend_choices([BACKEND])
    register_attention_backend(BACKEND)(_backend)
    HookRegistry.register(DRAFT_BACKENDS, _with_ours, HookType.AROUND)
    HookRegistry.register(SAMPLING_VERIFY, refusals.refuse_sampling, HookType.AFTER)


def _backend(runner: Any) -> Any:
    from draftproof_sglang.cpu.backend import CpuSdpaBackend

    return CpuSdpaBackend(runner)


def _with_ours(
    original: Any, factory: Any, backend_name: str, backend_map: dict[str, Any], template: str, stamps_children: bool = False
) -> Any:
    """`stamps_children` is true for the drafter's multi-step decoding only, false for its extending."""

    def ours() -> tuple[str, Any]:
        from draftproof_sglang.cpu.backend import CpuSdpaBackend, DraftDecodeBackend

        runner = factory.draft_model_runner
        if stamps_children:
            return BACKEND, DraftDecodeBackend(runner, factory.topk, factory.speculative_num_steps)
        return BACKEND, CpuSdpaBackend(runner)

    return original(factory, backend_name, {**backend_map, BACKEND: ours}, template, stamps_children=stamps_children)
