"""Bookkeeping of KV slots and tokens: the functions of `sgl_kernel` that SGLang 0.5.23 calls with these names and positions.

Every one writes in place, as the native ones do. "Slot" is a row of the KV cache; `req_to_token[request, position]` names it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import numpy as np
from torch import Tensor


def _ranges(rows: Tensor, starts: Tensor, ends: Tensor) -> Iterator[tuple[int, int, int]]:
    return zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True)


def assign_req_to_token_pool_cpu(
    req_pool_indices: Tensor, req_to_token: Tensor, start_offset: Tensor, end_offset: Tensor, out_cache_loc: Tensor, pool_len: int
) -> None:
    """`req_to_token[request, start:end]` takes the next entries of `out_cache_loc`."""
    taken = 0
    for row, start, end in _ranges(req_pool_indices, start_offset, end_offset):
        if end > start:
            req_to_token[row, start:end] = out_cache_loc[taken : taken + end - start]
            taken += end - start


def assign_extend_cache_locs_cpu(
    req_pool_indices: Tensor, req_to_token: Tensor, start_offset: Tensor, end_offset: Tensor, out_cache_loc: Tensor, pool_len: int
) -> None:
    """`out_cache_loc` takes `req_to_token[request, start:end]`, request after request."""
    filled = 0
    for row, start, end in _ranges(req_pool_indices, start_offset, end_offset):
        if end > start:
            out_cache_loc[filled : filled + end - start] = req_to_token[row, start:end]
            filled += end - start


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: Tensor, req_to_token: Tensor, seq_lens: Tensor, out_cache_loc: Tensor, pool_len: int, topk: int, num_steps: int
) -> None:
    """`out_cache_loc` takes each request's `topk * num_steps` slots from `seq_len` on."""
    width = topk * num_steps
    for i, (row, start) in enumerate(zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)):
        out_cache_loc[i * width : (i + 1) * width] = req_to_token[row, start : start + width]


def copy_all_layer_kv_cache_cpu(data_ptrs: Tensor, strides: Tensor, tgt_loc: Tensor, src_loc: Tensor) -> None:
    """Move KV rows in every buffer, each given by its address and the bytes of a row. Sources may overlap targets."""
    if tgt_loc.numel() == 0:
        return
    targets, sources = tgt_loc.numpy(), src_loc.numpy()
    rows = int(max(targets.max(), sources.max())) + 1
    for address, row_bytes in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        # A pointer is kept in an int64 (or viewed as one): the mask undoes a negative one.
        memory = (ctypes.c_uint8 * (rows * row_bytes)).from_address(address & (2**64 - 1))
        buffer = np.frombuffer(memory, dtype=np.uint8).reshape(rows, row_bytes)
        buffer[targets] = buffer[sources]


def fill_bonus_tokens_cpu(accept_tokens: Tensor, accept_lens: Tensor, bonus_tokens: Tensor, accept_stride: int) -> None:
    """`bonus_tokens` takes the last accepted token of each request; `accept_lens` counts the bonus token in."""
    tokens = accept_tokens.reshape(-1).tolist()
    for i, length in enumerate(accept_lens.tolist()):
        bonus_tokens[i] = tokens[i * accept_stride + length - 1]


def fill_accept_out_cache_loc_cpu(accept_index: Tensor, out_cache_loc: Tensor, accept_out_cache_loc: Tensor) -> None:
    """Pack the slots of the accepted tokens (index -1: not accepted) to the front."""
    index = accept_index.reshape(-1)
    index = index[index > -1].long()
    accept_out_cache_loc[: index.numel()] = out_cache_loc[index]


def rotate_input_ids_cpu(
    input_ids: Tensor, extend_start_loc: Tensor, extend_seq_lens: Tensor, topk_index: Tensor, select_index: Tensor | None = None
) -> None:
    """Shift each request's tokens left by one; the new token goes to the end, or to `select_index`."""
    new_tokens = topk_index.reshape(-1)
    for i, (start, length) in enumerate(zip(extend_start_loc.tolist(), extend_seq_lens.tolist(), strict=True)):
        if length > 0:
            end = start + length
            input_ids[start : end - 1] = input_ids[start + 1 : end].clone()
            input_ids[end - 1 if select_index is None else int(select_index[i])] = new_tokens[i]
