"""The drafter's architecture with every flag explicit, read from any form of config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tasks.verdict import BadInput
from tasks.wiring.families import check_draft_architecture
from tasks.wiring.record import Rope
from tasks.wiring.rope import resolve

Form = Literal["sglang", "speculators", "original"]
# LlamaConfig of transformers 5.19: both forms leave out what equals a default.
_DEFAULTS: dict[str, int] = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_attention_heads": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
    "num_hidden_layers": 1,
}
_DEFAULT_EPS = 1e-6
# SGLang 0.5.23, llama_eagle3.py:126-134: the number of features when no list says it.
_DEFAULT_FEATURES = 3
_LARGEST = 1 << 26


@dataclass(frozen=True)
class Architecture:
    """Sizes and flags of an EAGLE-3 drafter with one Llama layer. Field names are those of the wiring record.

    `layer_ids`: as the config has them, in the form's own meaning; None = the engine's default.
    `left_out`: norms that are skipped; only a hypothesis of the diagnosis does so.
    """

    form: Form
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    vocab_size: int
    draft_vocab_size: int
    max_position_embeddings: int
    rope: Rope
    num_features: int
    layer_ids: tuple[int, ...] | None
    norm_before_residual: bool
    norm_before_fc: bool
    fc_norm: bool
    norm_output: bool
    fc_bias: bool
    attention_window: int | None = None
    left_out: frozenset[str] = frozenset()


def read_architecture(config: Mapping[str, Any], where: str) -> Architecture:
    """Raises BadInput: no EAGLE-3 drafter, a feature of it that is not supported, or a value that makes no sense."""
    check_draft_architecture(config, where)
    speculators = "transformer_layer_config" in config
    layer = config["transformer_layer_config"] if speculators else config
    if not isinstance(layer, Mapping):
        raise BadInput(f"{where}: transformer_layer_config", found=type(layer).__name__, expected="a mapping", do="Mend the config.")
    _refuse(config, layer, where)
    sizes = {key: _size(layer, key, default, where) for key, default in _DEFAULTS.items()}
    heads = sizes["num_attention_heads"]
    kv_heads = _size(layer, "num_key_value_heads", heads, where)
    head_dim = _size(layer, "head_dim", max(1, sizes["hidden_size"] // heads), where)
    if heads % kv_heads or head_dim % 2:
        raise BadInput(where, found=f"{heads} heads, {kv_heads} for KV, of {head_dim}", expected="sizes that divide", do="Mend it.")
    eagle = config.get("eagle_config") or {}
    ids = _layer_ids(config if speculators else eagle, where)
    return Architecture(
        form="speculators" if speculators else "sglang" if eagle else "original",
        hidden_size=sizes["hidden_size"],
        intermediate_size=sizes["intermediate_size"],
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=_eps(layer, where),
        vocab_size=sizes["vocab_size"],
        draft_vocab_size=_size(config, "draft_vocab_size", None, where),
        max_position_embeddings=sizes["max_position_embeddings"],
        rope=resolve({**layer, "head_dim": head_dim}, where),
        num_features=_size(config, "num_aux_hidden_states", len(ids) if ids else _DEFAULT_FEATURES, where),
        layer_ids=ids,
        norm_before_residual=_flag(config, eagle, "norm_before_residual", where),
        # SGLang reads this one flag in eagle_config first, the others at the top level only (llama_eagle3.py:146-170).
        norm_before_fc=_flag(eagle if "norm_before_fc" in eagle else config, {}, "norm_before_fc", where),
        fc_norm=_flag(config, {}, "fc_norm", where) or _flag(config, {}, "use_aux_norm", where),
        norm_output=_flag(config, {}, "norm_output", where),
        fc_bias=_flag(config, {}, "bias", where),
        attention_window=_window(layer) if speculators else None,
    )


def _refuse(config: Mapping[str, Any], layer: Mapping[str, Any], where: str) -> None:
    """What the standalone forward does not compute is refused, never computed otherwise in silence."""
    unsupported = {
        "model_type": (layer.get("model_type", "llama"), "llama"),
        "num_hidden_layers": (layer.get("num_hidden_layers", 1), 1),
        "hidden_act": (layer.get("hidden_act", "silu"), "silu"),
        "attention_bias": (bool(layer.get("attention_bias", False)), False),
        "mlp_bias": (bool(layer.get("mlp_bias", False)), False),
        "tie_word_embeddings": (bool(config.get("tie_word_embeddings", False)), False),
        "quantization_config": (config.get("quantization_config"), None),
        "target_hidden_size": (config.get("target_hidden_size") or layer.get("hidden_size"), layer.get("hidden_size")),
    }
    for key, (found, expected) in unsupported.items():
        if found != expected:
            raise BadInput(f"{where}: {key}", found=found, expected=repr(expected), do="Such a drafter is not supported.")
    if not isinstance(config.get("eagle_config") or {}, Mapping):
        raise BadInput(f"{where}: eagle_config", found=config["eagle_config"], expected="a mapping", do="Mend the config.")


def _size(section: Mapping[str, Any], key: str, default: int | None, where: str) -> int:
    value = section.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= _LARGEST:
        do = "SGLang crashes without it, and takes the target's head for null." if key == "draft_vocab_size" else "Mend the config."
        raise BadInput(f"{where}: {key}", found=value, expected="a positive whole number", do=do)
    return value


def _eps(layer: Mapping[str, Any], where: str) -> float:
    value = layer.get("rms_norm_eps", _DEFAULT_EPS)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
        raise BadInput(f"{where}: rms_norm_eps", found=value, expected="a small positive number", do="Mend the config.")
    return float(value)


def _flag(section: Mapping[str, Any], fallback: Mapping[str, Any], key: str, where: str) -> bool:
    value = section.get(key, fallback.get(key)) or False
    if not isinstance(value, bool):
        raise BadInput(f"{where}: {key}", found=value, expected="true or false", do="Mend the config.")
    return value


def _layer_ids(section: Mapping[str, Any], where: str) -> tuple[int, ...] | None:
    key = "eagle_aux_hidden_state_layer_ids"
    value = section.get(key)
    if not value:
        return None
    if not isinstance(value, list) or any(isinstance(i, bool) or not isinstance(i, int) for i in value):
        raise BadInput(f"{where}: {key}", found=value, expected="a list of whole numbers", do="Mend the config.")
    return tuple(value)


def _window(layer: Mapping[str, Any]) -> int | None:
    """speculators 0.9.0, eagle3/core.py: a layer is windowed where layer_types says so, not where sliding_window is set."""
    return layer.get("sliding_window") if "sliding_attention" in (layer.get("layer_types") or []) else None
