"""Conversations from a JSONL file, OpenAI `messages` or ShareGPT `conversations`, checked line by line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tasks.data.raw import Message, Raw, is_text
from tasks.lines import Lines
from tasks.verdict import BadInput

_FORMS = {"messages": ("role", "content"), "conversations": ("from", "value")}
_ROLES = {"system": "system", "user": "user", "human": "user", "assistant": "assistant", "gpt": "assistant"}


def read_jsonl(path: Path) -> Sequence[Raw]:
    """Every conversation of the file, in memory only while it is looked at.

    Raises BadInput naming the first line that is none, or the file if it holds none.
    """
    try:
        found = Lines(path, _conversation)
    except OSError as error:
        raise BadInput(str(path), found=str(error), expected="a JSONL file in UTF-8", do="Mend data.prompts.") from error
    if not found:
        raise BadInput(str(path), found="no conversation", expected="one JSON object per line", do="Put conversations into the file.")
    return found


def _conversation(line: bytes, where: str) -> Raw:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:  # no JSON, or no UTF-8
        raise _bad(where, f"no JSON ({error})") from error
    form = next((f for f in _FORMS if isinstance(value, dict) and isinstance(value.get(f), list)), None)
    if form is None:
        raise _bad(where, "neither a list `messages` nor a list `conversations`")
    messages = [_message(turn, *_FORMS[form], where=where) for turn in value[form]]
    return Raw(messages, subject="\n".join(m["content"] for m in messages if m["role"] == "user"))


def _message(turn: Any, role_key: str, text_key: str, *, where: str) -> Message:
    if not isinstance(turn, dict) or not is_text(turn.get(text_key)):
        raise _bad(where, f"a turn without text in {text_key!r}")
    role = turn.get(role_key)
    if role not in _ROLES:
        raise _bad(where, f"the role {role!r}")
    return {"role": _ROLES[role], "content": turn[text_key]}


def _bad(where: str, found: str) -> BadInput:
    return BadInput(
        where,
        found=found,
        expected='{"messages": [{"role": "user", "content": "…"}, …]} or {"conversations": [{"from": "human", "value": "…"}, …]}',
        do=f"Roles are {', '.join(_ROLES)}. Mend or remove the line.",
    )
