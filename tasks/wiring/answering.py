"""What answers conversations, and what listens to it: `tasks.target` answers, `tasks.data` asks, `tasks.capture` listens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch


@dataclass(frozen=True)
class Answer:
    """One greedy answer."""

    index: int
    """Of the prompt in the sequence that was asked."""
    tokens: list[int]
    """Prompt and answer; an end-of-sequence token, if one was given, is the last."""
    features_SnH: torch.Tensor | None
    """bfloat16 [S, n, H] at the boundaries asked for, one row for each of `tokens`; None if none were asked for."""


class AnswerEngine(Protocol):
    """A target that answers many prompts at once."""

    def answer(
        self, prompts: Sequence[list[int]], max_new_tokens: int, *, boundaries: Sequence[int] | None = None, batch: int = 64
    ) -> Iterator[Answer]:
        """Greedy answers, `batch` at a time, in the order in which they are finished; the same prompts give the same answers."""


class Tap(Protocol):
    """Keeps the features of a conversation while it is being answered, so that they are not computed twice."""

    boundaries: list[int]
    """Boundaries to ask the engine for: the drafter's, then L (the last state before the final norm)."""

    def keep(self, folder: Path, conversation: str, answer: Answer) -> None:
        """Write the features of a conversation (by its id) into `folder`, whole or not at all."""
