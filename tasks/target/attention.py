"""Attention over a preallocated cache, for any transformers model that honours `attn_implementation`.

transformers 5.19 hands every keyword argument of the model's forward through to the attention function
(`LlamaAttention.forward`), which is how the cache arrives here; a name without an entry in its mask table gets
no mask (`masking_utils._preprocess_mask_arguments`), so what may be seen is decided here alone.

Shapes: B rows, T new tokens, C columns of the cache, Q query heads, K key heads, G = Q / K, D head size.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

NAME = "draftproof"


class KeyValues:
    """Keys and values of B rows of at most C tokens, written in place; each row has its own length."""

    def __init__(self, layers: int, rows: int, columns: int) -> None:
        self.rows, self.columns = rows, columns
        self.keys: list[torch.Tensor | None] = [None] * layers
        self.values: list[torch.Tensor | None] = [None] * layers
        self.row_B: torch.Tensor | None = None
        self.column_B: torch.Tensor | None = None
        self.mask_B11C: torch.Tensor | None = None

    def step(self, lengths_B: torch.Tensor, dtype: torch.dtype) -> None:
        """Prepare for one new token per row, at column `lengths_B` of each; what lies right of it is masked."""
        seen = int(lengths_B.max()) + 1
        visible = torch.arange(seen, device=lengths_B.device) <= lengths_B[:, None]
        self.mask_B11C = torch.zeros(visible.shape, dtype=dtype, device=lengths_B.device).masked_fill_(~visible, -torch.inf)[:, None, None]
        self.row_B, self.column_B = torch.arange(len(lengths_B), device=lengths_B.device), lengths_B

    def write_step(self, layer: int, key_BKD: torch.Tensor, value_BKD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write one token per row, return what was written so far: two [B, K, C', D]."""
        keys, values = self._layer(layer, key_BKD)
        assert self.mask_B11C is not None
        index = (self.row_B, slice(None), self.column_B)
        keys[index], values[index] = key_BKD, value_BKD
        seen = self.mask_B11C.shape[-1]
        return keys[:, :, :seen], values[:, :, :seen]

    def write_prompt(self, layer: int, rows: torch.Tensor, key_BKTD: torch.Tensor, value_BKTD: torch.Tensor) -> None:
        """Write the first T tokens of some rows."""
        keys, values = self._layer(layer, key_BKTD[:, :, 0])
        keys[rows, :, : key_BKTD.shape[2]], values[rows, :, : key_BKTD.shape[2]] = key_BKTD, value_BKTD

    def append(self, layer: int, past: int, key_1KTD: torch.Tensor, value_1KTD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write T more tokens of the only row behind `past` ones, return all of them: two [1, K, past + T, D]."""
        keys, values = self._layer(layer, key_1KTD[:, :, 0])
        end = past + key_1KTD.shape[2]
        keys[:, :, past:end], values[:, :, past:end] = key_1KTD, value_1KTD
        return keys[:, :, :end], values[:, :, :end]

    def widen(self, columns: int) -> None:
        """Room for `columns` tokens, keeping what is there."""
        more = columns - self.columns
        self.columns = columns
        self.keys = [None if k is None else F.pad(k, (0, 0, 0, more)) for k in self.keys]
        self.values = [None if v is None else F.pad(v, (0, 0, 0, more)) for v in self.values]

    def keep(self, rows: torch.Tensor) -> None:
        """Forget all rows but these."""
        self.rows = len(rows)
        self.keys = [None if k is None else k[rows] for k in self.keys]
        self.values = [None if v is None else v[rows] for v in self.values]

    def _layer(self, layer: int, like_BKD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The buffers of a layer; made at its first use, when head count, size and dtype are known. Zeros, since 0 * NaN is NaN."""
        keys, values = self.keys[layer], self.values[layer]
        if keys is None or values is None:
            shape = (self.rows, like_BKD.shape[1], self.columns, like_BKD.shape[2])
            keys = self.keys[layer] = like_BKD.new_zeros(shape)
            values = self.values[layer] = like_BKD.new_zeros(shape)
        return keys, values


def attend(
    module: torch.nn.Module,
    query_BQTD: torch.Tensor,
    key_BKTD: torch.Tensor,
    value_BKTD: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    kv: KeyValues | None = None,
    rows: torch.Tensor | None = None,
    past: int | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """The attention function handed to transformers: output [B, T, Q, D].

    With `kv` and neither `rows` nor `past`: one step of every row (after `KeyValues.step`). With `rows`: prompts that start
    those rows. With `past`: T more tokens of row 0, of which `past` are there already. Without `kv`: whole sequences.
    Sequences shorter than T are padded on the right, where causality hides the padding from every real token.
    """
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    tokens = query_BQTD.shape[2]
    if kv is not None and rows is None and past is None:
        keys, values = kv.write_step(layer, key_BKTD[:, :, 0], value_BKTD[:, :, 0])
        # The query heads of one key head become rows of one product: no repeated keys.
        query = query_BQTD.view(query_BQTD.shape[0], keys.shape[1], -1, query_BQTD.shape[3])
        out = F.scaled_dot_product_attention(query, keys, values, attn_mask=kv.mask_B11C, scale=scaling)
        return out.reshape(out.shape[0], 1, -1, out.shape[-1]), None
    mask = None
    if kv is not None and past is not None:
        key_BKTD, value_BKTD = kv.append(layer, past, key_BKTD, value_BKTD)
        mask = torch.ones(tokens, past + tokens, dtype=torch.bool, device=query_BQTD.device).tril(past)
    elif kv is not None and rows is not None:
        kv.write_prompt(layer, rows, key_BKTD, value_BKTD)
    out = F.scaled_dot_product_attention(
        query_BQTD,
        key_BKTD,
        value_BKTD,
        attn_mask=mask,
        is_causal=mask is None,
        scale=scaling,
        enable_gqa=query_BQTD.shape[1] != key_BKTD.shape[1],
    )
    return out.transpose(1, 2).contiguous(), None


def register() -> None:
    """Make `attn_implementation=NAME` known to transformers."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attend)
