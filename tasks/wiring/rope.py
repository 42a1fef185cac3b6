"""RoPE parameters, resolved from every form in which a config.json says them, as SGLang 0.5.23 would read them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tasks.verdict import BadInput
from tasks.wiring.record import Rope

# transformers 5.19, LlamaConfig.default_theta: a config without any theta gets it in silence.
DEFAULT_THETA = 10000.0
# What each kind reads besides theta (transformers 5.19, modeling_rope_utils.py).
_VALUES: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}


def resolve(config: Mapping[str, Any], where: str = "config.json") -> Rope:
    """The resolved parameters of a config.json with `rope_parameters`, or `rope_theta` with `rope_scaling`.

    Raises BadInput for a kind that is not supported (yarn, longrope, partial, per layer type) or values that are
    no positive numbers.
    """
    # transformers 5.19, convert_rope_params_to_dict: where both stand, rope_scaling replaces rope_parameters.
    given = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(given, Mapping):
        raise BadInput(f"{where}: rope_parameters", found=given, expected="a mapping or null", do="Mend the config.")
    kind = str(given.get("rope_type") or given.get("type") or "default")
    partial = given.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    unsupported = (
        f"kind {kind!r}"
        if kind not in _VALUES
        else f"partial_rotary_factor {partial}"
        if partial not in (None, 1, 1.0)
        else "one RoPE per layer type"
        if any(isinstance(value, Mapping) for value in given.values())
        else None
    )
    if unsupported:
        raise BadInput(f"{where}: RoPE", found=unsupported, expected=f"one of {', '.join(_VALUES)}", do="Other kinds are not supported.")
    theta = given.get("rope_theta", config.get("rope_theta", DEFAULT_THETA))
    return Rope(
        theta=_positive(theta, f"{where}: rope_theta"),
        type=kind,
        head_dim=_head_dim(config, where),
        scaling={key: _positive(_scaling_value(key, given, config), f"{where}: RoPE {key}") for key in _VALUES[kind]},
    )


def theta_of(config: Mapping[str, Any]) -> float | None:
    """A target's own theta; None where its kind of RoPE is none that a drafter can have."""
    try:
        return resolve(config).theta
    except BadInput:
        return None


def says_theta(config: Mapping[str, Any]) -> bool:
    """Whether a config.json names a theta at all; if not, every engine takes 10000 in silence."""
    given = config.get("rope_scaling") or config.get("rope_parameters") or {}
    return "rope_theta" in config or "rope_theta" in given


def as_config(rope: Rope) -> dict[str, Any]:
    """`rope_parameters` of a config.json."""
    return {"rope_type": rope.type, "rope_theta": rope.theta, **rope.scaling}


def _head_dim(config: Mapping[str, Any], where: str) -> int:
    head_dim = config.get("head_dim")
    if head_dim is None:
        heads = config.get("num_attention_heads")
        hidden = config.get("hidden_size")
        head_dim = hidden // heads if isinstance(hidden, int) and isinstance(heads, int) and heads > 0 else None
    if isinstance(head_dim, bool) or not isinstance(head_dim, int) or head_dim < 2 or head_dim % 2:
        raise BadInput(f"{where}: head_dim", found=head_dim, expected="an even positive number", do="Mend the config.")
    return head_dim


def _scaling_value(key: str, given: Mapping[str, Any], config: Mapping[str, Any]) -> object:
    if key == "original_max_position_embeddings":
        # transformers 5.19, standardize_rope_params: the top-level key wins, max_position_embeddings is the last resort.
        return config.get(key) or given.get(key) or config.get("max_position_embeddings")
    return given.get(key)


def _positive(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise BadInput(where, found=value, expected="a positive number", do="Mend the config.")
    return float(value)
