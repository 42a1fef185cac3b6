"""Rotary position embedding, resolved from every form in which a config.json says it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from tasks.verdict import BadInput
from tasks.wiring.record import Rope

# transformers 5.19: LlamaConfig.default_theta; a config without any theta gets it in silence.
DEFAULT_THETA = 10000.0
_SCALING_KEYS = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}


def read_rope(config: Mapping[str, Any], head_dim: int, where: str) -> Rope:
    """The resolved parameters of `rope_parameters` (transformers 5) or `rope_theta` with `rope_scaling` (before).

    Raises BadInput for a type that is not supported, or values that are no positive numbers.
    """
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(given, Mapping):
        raise BadInput(f"{where}: rope_parameters", found=given, expected="a mapping or null", do="Mend the config.")
    kind = str(given.get("rope_type") or given.get("type") or "default")
    if kind not in _SCALING_KEYS or given.get("partial_rotary_factor", 1.0) != 1.0:
        found = kind if kind not in _SCALING_KEYS else "partial_rotary_factor"
        raise BadInput(f"{where}: RoPE", found=found, expected=f"one of {', '.join(_SCALING_KEYS)}", do="Other kinds are not supported.")
    values = {key: _positive(given.get(key), f"{where}: RoPE {key}") for key in _SCALING_KEYS[kind]}
    theta = given.get("rope_theta", config.get("rope_theta", DEFAULT_THETA))
    return Rope(theta=_positive(theta, f"{where}: rope_theta"), type=kind, head_dim=head_dim, scaling=values)


def _positive(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not (0 < value < math.inf):
        raise BadInput(where, found=value, expected="a positive number", do="Mend the config.")
    return float(value)


def frequencies(rope: Rope) -> torch.Tensor:
    """Radians per position, float32 [head_dim / 2]."""
    exponents = torch.arange(0, rope.head_dim, 2, dtype=torch.float32) / rope.head_dim
    plain = 1.0 / rope.theta**exponents
    if rope.type == "linear":
        return plain / rope.scaling["factor"]
    return _llama3(plain, rope.scaling) if rope.type == "llama3" else plain


def _llama3(plain: torch.Tensor, scaling: Mapping[str, float]) -> torch.Tensor:
    """Llama 3.1's scaling: long waves are stretched, short ones kept, a ramp between (transformers 5.19, modeling_rope_utils.py)."""
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    waves_in_context = scaling["original_max_position_embeddings"] * plain / (2 * math.pi)
    kept = ((waves_in_context - low) / (high - low)).clamp(0, 1)
    return plain * (kept + (1 - kept) / scaling["factor"])


def rotate(x_BhSD: torch.Tensor, angles_BSd: torch.Tensor) -> torch.Tensor:
    """Rotate halves (x[i], x[i + D/2]) by the angles of each position; d = D/2."""
    cos, sin = angles_BSd.cos().unsqueeze(1), angles_BSd.sin().unsqueeze(1)
    low, high = x_BhSD.chunk(2, -1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)
