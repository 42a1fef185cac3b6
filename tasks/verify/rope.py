"""Rotary position embedding from resolved parameters (`tasks.wiring.rope`)."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from tasks.wiring.record import Rope


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
