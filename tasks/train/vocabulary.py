"""The draft vocabulary: the target tokens that the training answers use most."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import torch
from speculators.train.vocab_mapping import build_vocab_mappings_from_distribution

from tasks.train.rows import Rows
from tasks.verdict import BadInput
from tasks.wiring.record import VocabMap
from tasks.wiring.vocabulary import vocab_map

_MULTIPLE = 64


@dataclass(frozen=True)
class Vocabulary:
    """`d2t` [Vd] int64 offsets (target id = draft id + d2t[draft id]), `t2d` [V] bool (is in the draft vocabulary)."""

    d2t: torch.Tensor
    t2d: torch.Tensor

    @property
    def size(self) -> int:
        return len(self.d2t)

    def record(self) -> VocabMap:
        return vocab_map(self.d2t, len(self.t2d))


def count_tokens(rows: Rows) -> Counter[int]:
    """How often each token is supervised in the training rows; the held-out rows have no say."""
    counts: Counter[int] = Counter()
    for row in range(rows.train):
        counts.update(token for token, asked in zip(rows.conversations[row].tokens, rows.mask(row), strict=True) if asked)
    return counts


def choose_vocabulary(counts: Counter[int], asked: int, target_size: int) -> Vocabulary:
    """The `asked` most frequent tokens, or fewer (a multiple of 64 if there are so many) when fewer were seen.

    The library fills a larger vocabulary up with the lowest ids, for which target id = draft id: never learnt, and
    a drafter whose map is ignored still gets those right, which hides the fault.

    Raises BadInput when `asked` is above the target's vocabulary, or nothing is supervised.
    """
    if asked > target_size:
        raise BadInput("train.draft_vocab_size", found=asked, expected=f"at most the target's {target_size}", do="Lower it.")
    if not counts:
        raise BadInput("conversations.jsonl", found="no supervised token", expected="answers to learn", do="See data.answers.")
    seen = len(counts)
    size = asked if seen >= asked else seen // _MULTIPLE * _MULTIPLE or seen
    d2t, t2d = build_vocab_mappings_from_distribution(dict(counts), size, target_size)
    return Vocabulary(d2t, t2d)
