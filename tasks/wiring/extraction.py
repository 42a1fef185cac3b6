"""What capture needs of a target: features of given sequences, by two paths that share no code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch


class Extractor(Protocol):
    """The fast path: many sequences at once."""

    def features(self, sequences: Sequence[list[int]], boundaries: Sequence[int]) -> Iterator[tuple[int, torch.Tensor]]:
        """(index, bfloat16 features [S, n, H]) of each sequence, teacher-forced, in any order."""


class SecondPath(Protocol):
    """The slow path: one sequence at a time, float32, by what the model library itself offers."""

    def features(self, tokens: Sequence[int], boundaries: Sequence[int]) -> torch.Tensor:
        """float32 [S, n, H] on the CPU; boundary L is taken before the final norm."""

    def logits(self, tokens: Sequence[int]) -> torch.Tensor:
        """float32 [S, V] on the CPU: what the whole model itself says."""

    def head(self, last_state_SH: torch.Tensor) -> torch.Tensor:
        """Final norm and head of last states (boundary L): logits [S, V], float32."""
