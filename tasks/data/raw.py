"""Conversations before they are tokenised, and what was dropped on the way."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

Message = dict[str, str]


@dataclass(frozen=True)
class Raw:
    """A conversation as text."""

    messages: list[Message]
    subject: str
    """What it is about: conversations with nearly the same subject never stand on both sides of the split."""


def is_text(value: Any) -> bool:
    """Whether it is a string that can be written: JSON can spell half a character, which no tokenizer takes."""
    try:
        return isinstance(value, str) and value.encode("utf-8") is not None
    except UnicodeEncodeError:
        return False


Dropped = Counter[str]
"""Reason to count."""
