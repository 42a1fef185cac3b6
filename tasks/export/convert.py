"""A speculators 0.9.0 checkpoint in the words of SGLang 0.5.23: nothing is decided here, and no value is changed."""

from __future__ import annotations

from typing import Any

import torch
from transformers import LlamaConfig

from tasks.verdict import BadInput, Check
from tasks.wiring.families import DRAFT_ARCHITECTURE, Family
from tasks.wiring.kinds import Kind
from tasks.wiring.rope import as_config, resolve
from tasks.wiring.served_config import IDS, broken
from tasks.wiring.translate import boundaries_of_speculators, sglang_ids

_FROM_LAYER = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "max_position_embeddings",
    "rms_norm_eps",
    "attention_bias",
    "mlp_bias",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
)


def served_config(trained: dict[str, Any], family: Family, num_layers: int, dtype: str) -> dict[str, Any] | Check:
    """The whole config.json, every key that SGLang reads explicit; or the check that says why there can be none.

    speculators saves only what differs from transformers' defaults, so the layer's config is resolved by
    transformers, as the library does itself. Flags that cannot be served are carried over for the contract to refuse.
    """
    given = trained.get("transformer_layer_config") or {}
    if given.get("model_type") != "llama":
        message = f"The draft layer is of model_type {given.get('model_type')!r}: SGLang's drafter has a llama layer. Train one."
        return broken("architecture flags", Kind.ARCHITECTURE_FLAGS, message)
    layer = LlamaConfig(**given)
    try:
        ids = sglang_ids(boundaries_of_speculators(trained.get(IDS) or []), family, num_layers, IDS)
    except BadInput as error:
        return broken("layer boundaries", Kind.LAYER_BOUNDARIES, str(error), {"boundaries": trained.get(IDS)})
    try:
        rope = as_config(resolve({**layer.to_dict(), "head_dim": layer.head_dim}, "transformer_layer_config"))
    except BadInput as error:
        return broken("rope", Kind.ROPE, str(error))
    windowed = "sliding_attention" in (given.get("layer_types") or [])
    return {
        "architectures": [DRAFT_ARCHITECTURE],
        "model_type": "llama",
        **{key: getattr(layer, key) for key in _FROM_LAYER},
        "rope_parameters": rope,
        "tie_word_embeddings": False,
        # Where the embedding's width says "share the target's", and where fc's bias is asked for (llama_eagle3.py:120-139).
        "target_hidden_size": trained.get("target_hidden_size") or layer.hidden_size,
        "bias": False,
        "num_aux_hidden_states": len(ids),
        "draft_vocab_size": trained.get("draft_vocab_size"),
        "dtype": dtype,
        "fc_norm": trained.get("fc_norm", False),
        "norm_output": trained.get("norm_output", False),
        "norm_before_residual": trained.get("norm_before_residual", False),
        "eagle_config": {
            "use_aux_hidden_state": True,
            IDS: ids,
            "norm_before_fc": trained.get("norm_before_fc", False),
        },
        **({"layer_types": given["layer_types"], "sliding_window": given.get("sliding_window")} if windowed else {}),
    }


def served_tensors(trained: dict[str, torch.Tensor], dtype: torch.dtype) -> dict[str, torch.Tensor] | Check:
    """The weights under the names that every SGLang knows, without the embedding; or the check that says why not.

    Unknown tensors are carried over for the contract to refuse. A weight that `dtype` cannot hold exactly would be
    served as another than the trainer's logits were computed with.
    """
    renamed: dict[str, torch.Tensor] = {}
    rounded = []
    for name, tensor in trained.items():
        if name == "embed_tokens.weight":
            continue
        value = tensor.to(dtype) if tensor.is_floating_point() else tensor
        if not torch.equal(value.to(tensor.dtype), tensor) and bool(torch.isfinite(tensor).all()):
            rounded.append(name)
        renamed[_renamed(name)] = value.contiguous()
    if rounded:
        message = f"{str(dtype).removeprefix('torch.')} cannot hold {', '.join(sorted(rounded))} exactly. Set export.dtype to float32."
        return broken("dtype", Kind.DTYPE_QUANTISATION, message, {"rounded": sorted(rounded)})
    return renamed


def _renamed(name: str) -> str:
    """SGLang before 0.5.23 calls the one layer `midlayer`, and 0.5.23 still knows it."""
    return "midlayer." + name.removeprefix("layers.0.") if name.startswith("layers.0.") else name
