"""Where the keys and values of a request lie in the KV cache, worked out once per forward and used by every layer.

Shapes: N cache rows, H heads of the cache, D head size, T queries.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Rows:
    """Rows of a cache buffer: a range where the slots follow one another, which is a view and costs nothing; else an index."""

    start: int
    stop: int
    index: Tensor | None

    @classmethod
    def at(cls, slots: Tensor) -> Rows:
        """`slots` [N], of any integer type."""
        array = slots.numpy()
        if len(array) == 0:
            return cls(0, 0, None)
        start, stop = int(array[0]), int(array[-1]) + 1
        if stop - start == len(array) and np.array_equal(array, np.arange(start, stop)):
            return cls(start, stop, None)
        return cls(start, stop, slots.long())

    def read(self, buffer_XHD: Tensor) -> Tensor:
        """[N, H, D]. `index_select` copies whole rows: three times as fast as indexing with a tensor."""
        return buffer_XHD[self.start : self.stop] if self.index is None else buffer_XHD.index_select(0, self.index)

    def write(self, buffer_XHD: Tensor, new_NHD: Tensor) -> None:
        if self.index is None:
            buffer_XHD[self.start : self.stop] = new_NHD
        else:
            buffer_XHD.index_copy_(0, self.index, new_NHD)


@dataclass
class Span:
    """Some consecutive queries of a batch, the cache rows they attend to, and who sees whom (None: all see all)."""

    queries: slice
    rows: Rows
    visible_TN: Tensor | None = None
    _biases: dict[tuple[int, torch.dtype], Tensor] = field(default_factory=dict)

    def bias(self, group: int, dtype: torch.dtype) -> Tensor | None:
        """Additive mask [T * group, N] for queries folded by `attention.attend`, made once and used by every layer."""
        if self.visible_TN is None:
            return None
        key = (group, dtype)
        if key not in self._biases:
            bias_TN = torch.zeros(self.visible_TN.shape, dtype=dtype).masked_fill_(~self.visible_TN, float("-inf"))
            self._biases[key] = bias_TN.repeat_interleave(group, dim=0)
        return self._biases[key]


# Queries of one span at most: the mask of a long prefill would otherwise grow with its square, and causal work is saved.
SPAN_QUERIES = 256


def causal_spans(first_query: int, slots: Tensor, queries: int) -> list[Span]:
    """The last `queries` of a request's tokens, each seeing itself and everything before; `slots` [N] of all its tokens."""
    spans = []
    before = len(slots) - queries
    for start in range(0, queries, SPAN_QUERIES):
        stop = min(start + SPAN_QUERIES, queries)
        total = before + stop
        visible = None
        if stop - start > 1:
            visible = torch.ones(stop - start, total, dtype=torch.bool).tril_(before + start)
        spans.append(Span(slice(first_query + start, first_query + stop), Rows.at(slots[:total]), visible))
    return spans


def tree_span(first_query: int, slots: Tensor, tree_TT: Tensor) -> Span:
    """A tree of draft tokens, the last of a request's tokens: all before the tree is seen, and in it what `tree_TT` says."""
    visible = torch.ones(len(tree_TT), len(slots), dtype=torch.bool)
    visible[:, len(slots) - len(tree_TT) :] = tree_TT
    return Span(slice(first_query, first_query + len(tree_TT)), Rows.at(slots), visible)
