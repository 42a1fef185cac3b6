"""Benchmark prompts by category: own JSONL files, and the forms in which MT-Bench, GSM8K and HumanEval are published."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from tasks.data.chat import Chat
from tasks.data.raw import Message, is_text
from tasks.lines import Lines
from tasks.products import TargetProduct
from tasks.verdict import BadInput


@dataclass(frozen=True)
class Prompt:
    """One request of a workload."""

    tokens: list[int]
    category: str


@dataclass(frozen=True)
class _Question:
    messages: list[Message]
    category: str


def _ask(text: str) -> list[Message]:
    return [{"role": "user", "content": text}]


def _mt_bench(line: dict[str, Any], name: str) -> _Question:
    """Its second turn asks about the answer to the first, which each target gives differently: the first is taken."""
    return _Question(_ask(line["turns"][0]), str(line.get("category") or name))


def _gsm8k(line: dict[str, Any], _: str) -> _Question:
    return _Question(_ask(line["question"]), "gsm8k")


def _humaneval(line: dict[str, Any], _: str) -> _Question:
    return _Question(_ask(f"Complete this Python function.\n\n```python\n{line['prompt']}\n```"), "humaneval")


def _own(line: dict[str, Any], name: str) -> _Question:
    messages = line["messages"] if "messages" in line else _ask(line["prompt"])
    return _Question([{"role": m["role"], "content": m["content"]} for m in messages], str(line.get("category") or name))


# By the keys that a line of each form has; the first that fits.
_FORMS: list[tuple[set[str], Callable[[dict[str, Any], str], _Question]]] = [
    ({"turns"}, _mt_bench),
    ({"task_id", "prompt", "entry_point"}, _humaneval),
    ({"question", "answer"}, _gsm8k),
    ({"messages"}, _own),
    ({"prompt"}, _own),
]


def read(files: Sequence[Path], *, target: TargetProduct, count: int, longest: int) -> list[Prompt]:
    """See `tasks.data.read_workload`."""
    chat = Chat.load(target)
    by_category: dict[str, list[Prompt]] = defaultdict(list)
    for file in files:
        for question in _questions(file):
            tokens = chat.prompt(question.messages)
            if len(tokens) <= longest:
                by_category[question.category].append(Prompt(tokens, question.category))
    in_turn = [prompt for prompts in zip_longest(*by_category.values()) for prompt in prompts if prompt is not None]
    if not in_turn:
        raise BadInput(
            "benchmark.workloads",
            found=f"no prompt of at most {longest} tokens in {', '.join(map(str, files))}",
            expected="at least one",
            do="Give shorter prompts, or raise deploy.context_length.",
        )
    return in_turn[:count]


def _questions(file: Path) -> Iterator[_Question]:
    try:
        yield from Lines(file, lambda line, where: _question(line, where, file.stem))
    except OSError as error:
        raise BadInput(str(file), found=str(error), expected="a JSONL file in UTF-8", do="Mend benchmark.workloads.") from error


def _question(line: bytes, where: str, name: str) -> _Question:
    try:
        value = json.loads(line)
        form = next(form for keys, form in _FORMS if keys <= value.keys())
        question = form(value, name)
        if not question.messages or not all(is_text(message["content"]) for message in question.messages):
            raise TypeError("a prompt that is no text")
    except (ValueError, AttributeError, StopIteration, LookupError, TypeError, RecursionError) as error:
        raise BadInput(
            where,
            found=f"a line of no known form ({type(error).__name__}: {error})",
            expected='{"prompt": "…", "category": "…"}, {"messages": […]}, or a line of MT-Bench, GSM8K or HumanEval',
            do="Mend or remove the line.",
        ) from error
    return question
