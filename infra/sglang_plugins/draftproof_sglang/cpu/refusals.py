"""What this backend does not compute exactly is refused, by name: never answered wrongly."""

from __future__ import annotations

from typing import Any

import torch

_CACHE_TYPES = (torch.float32, torch.bfloat16, torch.float16)


class Refused(NotImplementedError):
    """A model or an option that the CPU backend does not serve."""

    def __init__(self, what: str) -> None:
        super().__init__(f"draftproof-sglang: the CPU attention backend does not support {what}")


def refuse_model(runner: Any) -> None:
    """Raises Refused, at start, for a model or an option that the backend would compute wrongly. `runner` has its pools and its model."""
    from sglang.srt.layers.radix_attention import RadixAttention
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

    args, pool = runner.server_args, runner.token_to_kv_pool
    for refused, what in (
        (runner.page_size != 1, f"pages of {runner.page_size} tokens; launch with --page-size 1"),
        (args.enable_deterministic_inference, "--enable-deterministic-inference"),
        (args.enable_torch_compile, "--enable-torch-compile"),
        (args.speculative_draft_window_size is not None, "--speculative-draft-window-size"),
        (getattr(pool, "kv_cache_layout", "nhd") != "nhd", "SGLANG_USE_HND_KVCACHE"),
        (type(pool) is not MHATokenToKVPool, f"a KV cache of type {type(pool).__name__} (MLA, sliding window or hybrid attention)"),
    ):
        if refused:
            raise Refused(what)
    if pool.dtype not in _CACHE_TYPES:
        raise Refused(f"a KV cache in {pool.dtype}; launch with --kv-cache-dtype auto")
    for name, module in runner.model.named_modules():
        if isinstance(module, RadixAttention):
            refuse_layer(name, module)


def refuse_layer(name: str, layer: Any) -> None:
    """Raises Refused for an attention layer that is more than plain causal attention."""
    from sglang.srt.layers.radix_attention import AttentionType

    for refused, what in (
        (layer.sliding_window_size > 0, f"a sliding window of {layer.sliding_window_size}"),
        (layer.logit_cap > 0, f"a cap of {layer.logit_cap} on the attention logits"),
        (layer.is_cross_attention, "cross attention"),
        (layer.attn_type != AttentionType.DECODER, f"attention of type {layer.attn_type.value}"),
        (layer.k_scale_float not in (None, 1.0) or layer.v_scale_float not in (None, 1.0), "scaled keys and values"),
        (layer.xai_temperature_len > 0, "attention temperatures"),
    ):
        if refused:
            raise Refused(f"{what} ({name})")


def refuse_call(layer: Any, unknown: dict[str, Any]) -> None:
    """Raises Refused for what only shows when a layer is called: sinks, rotary halves and the like come as keywords."""
    given = sorted(name for name, value in unknown.items() if value is not None)
    if given:
        raise Refused(f"{', '.join(given)} (layer {layer.layer_id})")


def refuse_sampling(_: None, params: Any, vocab_size: int) -> None:
    """Runs after SGLang's own check of a request. Raises ValueError, which SGLang answers with status 400.

    On a CPU, verification takes the argmax whatever the temperature (`_verify_uses_greedy`, `speculative/eagle_utils.py:485-500`), and
    a seed is used only under --enable-deterministic-inference, which needs a native kernel.
    """
    if params.top_k == 1:  # greedy; SGLang writes temperature 0 so (`SamplingParams.normalize`)
        return
    if _speculative():
        raise ValueError("speculation on a CPU answers greedily: ask for temperature 0, or use a server without speculation")
    if params.sampling_seed is not None:
        raise ValueError("a seed has no effect on this CPU server: leave it out, or ask for temperature 0")


def refuse_update(*_: Any, **__: Any) -> tuple[bool, str]:
    """In the place of SGLang's updates of a running server's weights; it passes the pair on to the client as a failure."""
    return False, "draftproof-sglang: the weights of a running CPU server cannot be changed; start another one"


def _speculative() -> bool:
    from sglang.srt.runtime_context import get_spec

    return get_spec().speculative_algorithm is not None
