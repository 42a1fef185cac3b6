"""Attention of one span. Shapes: T queries, Q query heads, N cache rows, H heads of the cache, D head size."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def attend(query_TQD: Tensor, key_NHD: Tensor, value_NHD: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """The attention of `query_TQD` over the given rows: [T, Q * D].

    The Q/H query heads that share a head of the cache are folded into the query length, so keys and values are never repeated:
    row t * (Q/H) + i of a folded query is query t's i-th head. `bias` [T * Q/H, N] is added to the scores.
    """
    queries, heads, _ = query_TQD.shape
    shared = key_NHD.shape[1]
    group = heads // shared
    folded = query_TQD.view(queries, shared, group, -1).transpose(0, 1).reshape(1, shared, queries * group, -1)
    result = scaled_dot_product_attention(
        folded, key_NHD.transpose(0, 1).unsqueeze(0), value_NHD.transpose(0, 1).unsqueeze(0), attn_mask=bias, scale=scale
    )
    return result.view(shared, queries, group, -1).transpose(0, 1).reshape(queries, -1)
