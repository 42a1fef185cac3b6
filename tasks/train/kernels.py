"""The same results faster on a CPU: attention over packed rows, KL divergence, argmax. Used in training only.

The reference of the proof (`tasks.train.reference`) is computed with the library's and torch's own.
Shapes: S packed positions, K unrolled steps so far, A heads, D head size, V draft vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional
from transformers.modeling_utils import AttentionInterface

ATTENTION = "packed_rows"
_torch_argmax = torch.argmax
_ROWS_IN_CACHE = 64  # 64 rows of some thousand float32 stay in a core's L2 cache


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    scaling: float,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention under speculators' training mask, one block of it at a time; returns [1, S, A, D].

    The mask [1, 1, S, K * S] (models/eagle3/attention.py, speculators 0.9.0) is causal within each document for the
    first S keys, and a diagonal for the S keys of every further step: a query sees its own document and K - 1 keys
    more, and dense attention computes all the others in vain. Raises ValueError under any other mask.

    Shapes inside: G key-value heads, R queries to each of them, L positions of a block, T = K - 1 later steps.
    """
    length, mask_SK = query.shape[2], attention_mask[0, 0]
    query_GRSD = (query[0] * scaling).unflatten(0, (key.shape[1], -1))
    own_keys, own_values = key[0, :, :length], value[0, :, :length]
    later_keys, later_values = (x[0, :, length:].unflatten(1, (-1, length))[:, None] for x in (key, value))
    later_scores_GRST = (query_GRSD[:, :, None] * later_keys).sum(-1).transpose(2, 3)

    sizes = block_sizes(mask_SK)
    outputs, later_weights, start = [], [], 0
    parts = (query_GRSD.split(sizes, 2), own_keys.split(sizes, 1), own_values.split(sizes, 1), later_scores_GRST.split(sizes, 2))
    for size, query_GRLD, key_GLD, value_GLD, later_GRLT in zip(sizes, *parts, strict=True):
        own = slice(start, start + size)
        scores_GRLL = (query_GRLD.flatten(1, 2) @ key_GLD.transpose(1, 2)).unflatten(1, (-1, size))
        scores = torch.cat([scores_GRLL.masked_fill(~mask_SK[own, own], float("-inf")), later_GRLT], -1)
        weights = scores.softmax(-1, dtype=torch.float32).to(value.dtype)
        outputs.append((weights[..., :size].flatten(1, 2) @ value_GLD).unflatten(1, (-1, size)))
        later_weights.append(weights[..., size:])
        start += size
    output_GRSD = torch.cat(outputs, 2)
    if later_values.shape[2]:
        weights_GRTS = torch.cat(later_weights, 2).transpose(2, 3)
        output_GRSD = output_GRSD + (weights_GRTS[..., None] * later_values).sum(2)
    return output_GRSD.flatten(0, 1).transpose(0, 1)[None], None


AttentionInterface.register(ATTENTION, packed_attention)


def block_sizes(mask_SK: torch.Tensor) -> list[int]:
    """Lengths of the blocks on the diagonal of a training mask [S, K * S] bool, outside of which nothing is seen.

    A document is a block; the padding at the end, where each position sees but itself, is one block too.
    Raises ValueError when the mask is not of this form.
    """
    length = len(mask_SK)
    own, later = mask_SK[:, :length], mask_SK[:, length:].unflatten(1, (-1, length)) if mask_SK.shape[1] > length else None
    starts = own.int().argmax(-1).unique_consecutive().tolist()
    padding = next((i for i in range(len(starts)) if starts[i:] == list(range(starts[i], length))), len(starts))
    starts = starts[: padding + 1]
    sizes = [stop - start for start, stop in zip(starts, [*starts[1:], length], strict=True)]
    inside = sum(int(own[start : start + size, start : start + size].sum()) for start, size in zip(starts, sizes, strict=True))
    diagonal = torch.eye(length, dtype=torch.bool)
    if inside != int(own.sum()) or (later is not None and not torch.equal(later, diagonal[:, None].expand_as(later))):
        raise ValueError("no training mask of speculators 0.9.0: tasks/train/kernels.py no longer fits")
    return sizes


class _KlDivergence(torch.autograd.Function):
    """Forward and gradient (softmax(logits) - softmax(targets)) in one pass over rows that stay in the cache."""

    @staticmethod
    def forward(ctx: Any, logits_NV: torch.Tensor, targets_NV: torch.Tensor) -> torch.Tensor:
        losses, gradient = torch.empty(len(logits_NV)), torch.empty(logits_NV.shape)
        for start in range(0, len(logits_NV), _ROWS_IN_CACHE):
            rows = slice(start, start + _ROWS_IN_CACHE)
            log_drafted = functional.log_softmax(logits_NV[rows], -1, dtype=torch.float32)
            log_wanted = functional.log_softmax(targets_NV[rows], -1, dtype=torch.float32)
            wanted = log_wanted.exp()
            torch.sum(log_wanted.sub_(log_drafted).mul_(wanted), -1, out=losses[rows])
            torch.sub(log_drafted.exp_(), wanted, out=gradient[rows])
        ctx.save_for_backward(gradient)
        ctx.dtype = logits_NV.dtype
        return losses

    @staticmethod
    def backward(ctx: Any, *incoming: torch.Tensor) -> tuple[torch.Tensor, None]:
        (gradient,) = ctx.saved_tensors
        result = torch.empty(gradient.shape, dtype=ctx.dtype)
        for start in range(0, len(gradient), _ROWS_IN_CACHE):
            rows = slice(start, start + _ROWS_IN_CACHE)
            result[rows] = gradient[rows] * incoming[0][rows, None]
        return result, None


def kl_divergence(logits_1SV: torch.Tensor, targets_1SV: torch.Tensor) -> torch.Tensor:
    """`speculators.losses.eager.kl_div_loss`, [1, S] float32."""
    losses: torch.Tensor = _KlDivergence.apply(logits_1SV[0], targets_1SV[0])
    return losses[None]


def argmax(values: torch.Tensor, dim: int | None = None, keepdim: bool = False) -> torch.Tensor:
    """`torch.argmax`, the first one of equals. Along the last dimension torch's is scalar code on a CPU, numpy's is vectorised."""
    if dim not in (-1, values.dim() - 1) or keepdim:
        return _torch_argmax(values, dim, keepdim)
    flat = values.detach().reshape(-1, values.shape[-1])
    found = torch.empty(len(flat), dtype=torch.int64)
    for start in range(0, len(flat), _ROWS_IN_CACHE):
        rows = slice(start, start + _ROWS_IN_CACHE)
        found[rows] = torch.from_numpy(flat[rows].float().numpy().argmax(-1))
    return found.view(values.shape[:-1])
