"""What attention remembers: a cache for decoding, and the unrolled steps of teacher-forced sequences."""

from __future__ import annotations

import torch
import torch.nn.functional as F


class Cache:
    """Keys and values of one sequence of committed positions, followed by the draft's own: causal decoding."""

    def __init__(self, window: int | None = None) -> None:
        self.window = window
        self.keys: torch.Tensor | None = None
        self.values: torch.Tensor | None = None

    def __len__(self) -> int:
        return 0 if self.keys is None else self.keys.shape[2]

    def crop(self, length: int) -> None:
        """Keep the first `length` positions."""
        if self.keys is not None and self.values is not None:
            self.keys, self.values = self.keys[:, :, :length], self.values[:, :, :length]

    def attend(self, query_BhSD: torch.Tensor, key_BhSD: torch.Tensor, value_BhSD: torch.Tensor) -> torch.Tensor:
        before = len(self)
        self.keys = key_BhSD if self.keys is None else torch.cat([self.keys, key_BhSD], 2)
        self.values = value_BhSD if self.values is None else torch.cat([self.values, value_BhSD], 2)
        queries = torch.arange(before, len(self), device=query_BhSD.device)
        mask = causal(queries, torch.arange(len(self), device=query_BhSD.device), self.window)
        groups = query_BhSD.shape[1] // key_BhSD.shape[1]
        keys, values = self.keys.repeat_interleave(groups, 1), self.values.repeat_interleave(groups, 1)
        return F.scaled_dot_product_attention(query_BhSD, keys, values, attn_mask=mask)


class Unrolled:
    """Teacher-forced draft steps: index j of step k attends to step 0 up to j, and to j's own steps 1..k.

    The scores of the chain are added as k columns beside those of step 0, so that no mask of S times k·S entries
    is ever made (speculators 0.9.0 builds one: eagle3/attention.py, extend_dense_mask_for_draft_tokens).

    `rows`: the indices of step 0 that the rows of steps 1, 2, … hang on, several to an index where it has branches;
    without it each index goes on by itself.
    """

    def __init__(self, window: int | None = None, *, moving: bool = False, rows: torch.Tensor | None = None) -> None:
        self.window, self.moving, self.rows = window, moving, rows
        self.steps: list[tuple[torch.Tensor, torch.Tensor]] = []

    def attend(self, query_BhSD: torch.Tensor, key_BhSD: torch.Tensor, value_BhSD: torch.Tensor) -> torch.Tensor:
        groups = query_BhSD.shape[1] // key_BhSD.shape[1]
        self.steps.append((key_BhSD.repeat_interleave(groups, 1), value_BhSD.repeat_interleave(groups, 1)))
        (first_keys, first_values), chain = self.steps[0], self.steps[1:]
        query = query_BhSD * query_BhSD.shape[-1] ** -0.5
        index = torch.arange(first_keys.shape[2], device=query.device)
        rows = index if self.rows is None or not chain else self.rows
        mask = causal(rows, index, self.window, shift=len(chain) if self.moving else 0)
        scores = (query @ first_keys.transpose(-1, -2)).masked_fill(~mask, -torch.inf)
        own = [(query * keys).sum(-1, keepdim=True) for keys, _ in chain]
        shares = torch.cat([scores, *own], -1).softmax(-1)
        attended = shares[..., : len(index)] @ first_values
        for k, (_, values) in enumerate(chain):
            attended = attended + shares[..., len(index) + k, None] * values
        return attended


def causal(queries: torch.Tensor, keys: torch.Tensor, window: int | None, shift: int = 0) -> torch.Tensor:
    """Which keys a query sees, [queries, keys]; with a window the last `window` positions before query + shift."""
    seen = keys[None] <= queries[:, None]
    return seen if window is None else seen & (keys[None] > queries[:, None] + shift - window)
