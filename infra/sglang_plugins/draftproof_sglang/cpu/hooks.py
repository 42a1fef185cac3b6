"""What is changed inside SGLang, besides the stand-in: a new attention backend, and the functions in `HOOKS`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from draftproof_sglang.cpu import BACKEND, linear, refusals, rotary


def register() -> None:
    """Register all of it; SGLang applies the hooks when every plugin has been called."""
    from sglang.srt.arg_groups.choices import ATTENTION_BACKEND_CHOICES, add_attention_backend_choices
    from sglang.srt.layers.attention.attention_registry import register_attention_backend
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    if BACKEND not in ATTENTION_BACKEND_CHOICES:
        add_attention_backend_choices([BACKEND])
    register_attention_backend(BACKEND)(_backend)
    for hook in HOOKS:
        HookRegistry.register(hook.target, hook.function, HookType[hook.kind])


def _backend(runner: Any) -> Any:
    from draftproof_sglang.cpu.backend import CpuSdpaBackend

    return CpuSdpaBackend(runner)


def _with_ours(original: Any, factory: Any, name: str, backends: dict[str, Any], template: str, stamps_children: bool = False) -> Any:
    """`stamps_children` is true for the drafter's multi-step decoding only, false for its extending."""

    def ours() -> tuple[str, Any]:
        from draftproof_sglang.cpu.backend import CpuSdpaBackend, DraftDecodeBackend

        runner = factory.draft_model_runner
        if stamps_children:
            return BACKEND, DraftDecodeBackend(runner, factory.topk, factory.speculative_num_steps)
        return BACKEND, CpuSdpaBackend(runner)

    return original(factory, name, {**backends, BACKEND: ours}, template, stamps_children=stamps_children)


@dataclass(frozen=True)
class Hook:
    """A changed function of SGLang, with the parameters that the change was written for."""

    target: str
    parameters: tuple[str, ...]
    kind: Literal["AROUND", "AFTER", "REPLACE"]
    function: Callable[..., Any]


def _update(name: str, *parameters: str) -> Hook:
    """The laid-out copies of the weights (`linear`) would go stale in silence."""
    updater = "sglang.srt.model_executor.model_runner_components.weight_updater.WeightUpdater"
    return Hook(f"{updater}.{name}", ("self", *parameters), "REPLACE", refusals.refuse_update)


HOOKS = (
    Hook(
        "sglang.srt.speculative.draft_utils.DraftBackendFactory._create_backend",
        ("self", "backend_name", "backend_map", "error_template", "stamps_children"),
        "AROUND",
        _with_ours,
    ),
    Hook("sglang.srt.sampling.sampling_params.SamplingParams.verify", ("self", "vocab_size"), "AFTER", refusals.refuse_sampling),
    Hook("sglang.srt.model_executor.model_runner.ModelRunner.init_attention_backends", ("self",), "AFTER", linear.pack_model),
    Hook("sglang.srt.layers.quantization.unquant.UnquantizedLinearMethod.apply", ("self", "layer", "x", "bias"), "AROUND", linear.apply),
    Hook(
        "sglang.srt.layers.logits_processor.LogitsProcessor._compute_lm_head",
        ("self", "hidden_states", "lm_head", "embedding_bias", "out"),
        "AROUND",
        linear.lm_head,
    ),
    Hook(
        "sglang.srt.layers.rotary_embedding.base.RotaryEmbedding.forward_native",
        ("self", "positions", "query", "key", "offsets", "fused_set_kv_buffer_arg"),
        "AROUND",
        rotary.forward_native,
    ),
    _update("update_weights_from_disk", "model_path", "load_format", "weight_name_filter", "recapture_cuda_graph"),
    _update("update_weights_from_tensor", "named_tensors", "load_format"),
    _update("load_weights_from_distributed", "named_tensors"),
    _update("update_weights_from_ipc", "recv_req"),
)
