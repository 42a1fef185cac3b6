"""Conversations before they are tokenised, and what was dropped on the way."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

Message = dict[str, str]


@dataclass(frozen=True)
class Raw:
    """A conversation as text."""

    messages: list[Message]
    subject: str
    """What it is about: conversations with nearly the same subject never stand on both sides of the split."""


Dropped = Counter[str]
"""Reason to count."""
