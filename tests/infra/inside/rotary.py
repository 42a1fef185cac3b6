"""The rotary embedding. Run by test_inside_sglang.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from draftproof_sglang.cpu import rotary
from sglang.srt.plugins import load_plugins

load_plugins()

from sglang.srt.layers.rotary_embedding.base import RotaryEmbedding  # noqa: E402


def rope(size: int = 8, rotary_dim: int = 8, neox: bool = True, dtype: torch.dtype = torch.float32) -> RotaryEmbedding:
    return RotaryEmbedding(size, rotary_dim, 64, 10000, neox, dtype)


def rotated(embedding: Any, positions: torch.Tensor, dtype: torch.dtype = torch.float32) -> tuple[bool, bool]:
    """Whether the result is SGLang's own fallback's to the bit, and whether ours made it."""
    packed = torch.randn(len(positions), (6 + 2 + 2) * 8, dtype=dtype)
    query, key, _ = packed.split([48, 16, 16], dim=-1)
    expected = RotaryEmbedding.forward_native.__wrapped__(embedding, positions, query.clone(), key.clone())
    got = embedding(positions, query, key)  # by SGLang's own dispatch
    return all(torch.equal(*pair) for pair in zip(got, expected, strict=True)), hasattr(embedding, rotary._TABLES)


@pytest.mark.parametrize("tokens", [1, 4, 40])
def test_rotary_embedding_is_sglangs_own_to_the_bit(tokens: int) -> None:
    embedding, positions = rope(), torch.randperm(50)[:tokens]
    assert rotated(embedding, positions) == (True, True)
    positions.add_(1)  # as SGLang's draft steps do
    assert rotated(embedding, positions) == (True, True)
    embedding.cos_sin_cache = embedding.cos_sin_cache * 2
    assert rotated(embedding, positions) == (True, True)


@pytest.mark.parametrize("other", [{"rotary_dim": 4}, {"neox": False}, {"dtype": torch.bfloat16}])
def test_other_rotary_embeddings_are_left_to_sglang(other: dict[str, Any]) -> None:
    assert rotated(rope(**other), torch.arange(5), other.get("dtype", torch.float32)) == (True, False)
