"""Prompts of a file as a server would be given them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from tasks.data.chat import Chat
from tasks.data.files import read_jsonl
from tasks.products import TargetProduct
from tasks.verdict import BadInput


def encode(file: Path, *, target: TargetProduct, count: int, longest: int) -> list[list[int]]:
    """See `tasks.data.read_prompts`."""
    chat = Chat.load(target)

    def short_enough() -> Iterator[list[int]]:
        for raw in read_jsonl(file):
            last = max((i for i, message in enumerate(raw.messages) if message["role"] == "user"), default=-1)
            if last >= 0 and len(prompt := chat.prompt(raw.messages[: last + 1])) <= longest:
                yield prompt

    prompts = list(islice(short_enough(), count))
    if not prompts:
        raise BadInput(str(file), found=f"no prompt of at most {longest} tokens", expected="at least one", do="Give shorter prompts.")
    return prompts
