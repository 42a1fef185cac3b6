"""Greedy answers to many prompts: a fixed number of places, refilled as answers are finished, on one preallocated cache.

Every token of an answer, the last one too, goes through the target once, so that each position has its features.
The order of work follows from the prompts alone: the same prompts give the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch

from tasks.target.attention import KeyValues
from tasks.wiring.answering import Answer

if TYPE_CHECKING:
    from tasks.target.model import Target

_REFILL = 8
"""Share (one in so many) of the places that have to be empty before new prompts are read: reading few at a time is slow."""


def answer_all(target: Target, prompts: Sequence[list[int]], max_new_tokens: int, *, boundaries: list[int], batch: int) -> Iterator[Answer]:
    """Each prompt's answer, in the order in which they are finished."""
    # Long prompts first: what is left at the end, when places stay empty, is short. Prompts read together are of similar length.
    waiting = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    if not waiting:
        return
    places = _Places(target, min(batch, len(waiting)), len(prompts[waiting[-1]]) + max_new_tokens, max_new_tokens, boundaries)
    while waiting or places.busy:
        empty = places.empty()
        if waiting and len(empty) * _REFILL >= places.count:
            group = [waiting.pop() for _ in range(min(len(empty), len(waiting)))]
            places.read(empty[: len(group)], group, [prompts[i] for i in group])
        elif not waiting and len(empty) * 4 >= places.count:
            places.shrink()
        places.step()
        yield from places.finished()


class _Places:
    """The answers being given: B places, each with its prompt's index, tokens and features. Shapes: C columns, n boundaries."""

    def __init__(self, target: Target, count: int, columns: int, max_new_tokens: int, boundaries: list[int]) -> None:
        self.target, self.boundaries, self.max_new_tokens = target, boundaries, max_new_tokens
        self.kv = KeyValues(target.facts.num_layers, count, columns)
        self.index: list[int | None] = [None] * count
        self.tokens_BC = torch.zeros(count, columns, dtype=torch.int64)
        self.read_B = torch.zeros(count, dtype=torch.int64)  # tokens whose states are in the cache; one less than are known
        self.limit_B = torch.zeros(count, dtype=torch.int64)
        self.done_B = torch.zeros(count, dtype=torch.bool)
        self.eos = torch.tensor(target.facts.eos_token_ids)
        self.features_BCnH = torch.zeros(count, columns, len(boundaries), target.facts.hidden_size, dtype=torch.bfloat16)

    @property
    def count(self) -> int:
        return len(self.index)

    @property
    def busy(self) -> bool:
        return any(index is not None for index in self.index)

    def empty(self) -> list[int]:
        return [place for place, index in enumerate(self.index) if index is None]

    @torch.no_grad()
    def read(self, places: list[int], indices: list[int], prompts: list[list[int]]) -> None:
        """Read prompts into empty places, and choose the first token of each answer."""
        from tasks.target.model import padded

        tokens_BT, lengths_B = padded(prompts)
        width, rows = tokens_BT.shape[1], torch.tensor(places)
        normed, features = self.target.forward(tokens_BT, torch.arange(width)[None], self.boundaries, kv=self.kv, rows=rows)
        first = self.target.choose(normed[torch.arange(len(places)), lengths_B - 1])
        for place, index in zip(places, indices, strict=True):
            self.index[place] = index
        self.tokens_BC[rows, :width] = tokens_BT
        self.tokens_BC[rows, lengths_B] = first.cpu()
        self.features_BCnH[rows, :width] = features.to("cpu", torch.bfloat16)
        self.read_B[rows], self.limit_B[rows], self.done_B[rows] = lengths_B, lengths_B + self.max_new_tokens, False

    @torch.no_grad()
    def step(self) -> None:
        """Read the newest token of each place; choose the next, unless that was the last. Empty places compute for nothing."""
        rows, at_B = torch.arange(self.count), self.read_B
        tokens_B = self.tokens_BC[rows, at_B]
        self.kv.step(at_B.to(self.target.placement.device), self.target.dtype)
        normed, features = self.target.forward(tokens_B[:, None], at_B[:, None], self.boundaries, kv=self.kv)
        if self.boundaries:
            self.features_BCnH[rows, at_B] = features[:, 0].to("cpu", torch.bfloat16)
        self.done_B = torch.isin(tokens_B, self.eos) | (at_B + 1 >= self.limit_B)
        going = ~self.done_B
        self.read_B = at_B + going
        self.tokens_BC[rows[going], self.read_B[going]] = self.target.choose(normed[:, 0]).cpu()[going]

    def finished(self) -> Iterator[Answer]:
        """Hand over the answers that have ended, and empty their places."""
        for place in self.done_B.nonzero()[:, 0].tolist():
            index, end = self.index[place], int(self.read_B[place]) + 1
            if index is None:
                continue
            self.index[place] = None
            features = self.features_BCnH[place, :end].clone() if self.boundaries else None
            self.read_B[place], self.limit_B[place] = 0, 1
            yield Answer(index, self.tokens_BC[place, :end].tolist(), features)

    def shrink(self) -> None:
        """Give up the empty places."""
        keep = [place for place, index in enumerate(self.index) if index is not None]
        rows = torch.tensor(keep)
        self.kv.keep(rows.to(self.target.placement.device))
        self.index = [self.index[place] for place in keep]
        self.tokens_BC, self.features_BCnH = self.tokens_BC[rows], self.features_BCnH[rows]
        self.read_B, self.limit_B, self.done_B = self.read_B[rows], self.limit_B[rows], self.done_B[rows]
