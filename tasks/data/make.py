"""From prompts to `conversations.jsonl`."""

from __future__ import annotations

import random
import shutil
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from tasks.config import DataConfig
from tasks.data.chat import Chat, Tokenised
from tasks.data.raw import Dropped, Message, Raw
from tasks.data.source import Source
from tasks.data.split import held_out
from tasks.device import Placement
from tasks.lines import Lines
from tasks.products import KEPT_FEATURES, Conversation, DataProduct, TargetProduct
from tasks.report import Report
from tasks.store import Store, code_digest, need_disk, sha256_file, sha256_json, versions, write_atomic
from tasks.verdict import BadInput, Outcome, ProofFailed, Verdict
from tasks.wiring.answering import AnswerEngine, Tap
from tasks.wiring.kinds import Kind

_CHUNK = 512
"""Conversations per chunk: what an interruption can cost, and what shares the places of the engine."""

Split = Literal["train", "held_out"]


class _Chosen(BaseModel):
    """A conversation that was not dropped: to be answered (`tokens` is its prompt), or answered already."""

    id: str
    split: Split
    tokens: list[int]
    answered: Tokenised | None = None


def make(
    config: DataConfig,
    *,
    seed: int,
    target: TargetProduct,
    open_engine: Callable[[], AnswerEngine],
    placement: Placement,
    tap: Tap | None,
    store: Store,
    report: Report,
) -> DataProduct:
    """See `tasks.data.make_data`."""
    if config.answers == "given":
        tap = None
    source = Source.of(config.prompts)
    inputs = {
        "config": config.model_dump(),
        "prompts": source.sha256(),
        "seed": seed,
        "target": target.sha256,
        "placement": placement.model_dump(),
        "boundaries": tap.boundaries if tap else None,
        "versions": versions("torch", "transformers", "tokenizers"),
        "code": code_digest("data", "target"),
    }
    key = store.key("data", inputs)

    def build(folder: Path) -> dict[str, Any]:
        dropped = Dropped()
        chosen = _choose(source.read(), config, Chat.load(target), seed, dropped, folder / "chosen")
        if tap:
            tokens = len(chosen) * (config.prompt_tokens + config.answer_tokens)
            need_disk(folder, tokens * len(tap.boundaries) * target.print.hidden_size * 2, "keeping features while answering")
        parts = list(_chunks(chosen, config, folder, open_engine, tap, report))
        shutil.rmtree(folder / "chosen")
        return _write(folder, parts, config, dropped)

    product = store.make("data", key, build, hashed=lambda name: not name.startswith(f"{KEPT_FEATURES}/"))
    return DataProduct(folder=store.folder("data", key), **product)


def _choose(raw: Sequence[Raw], config: DataConfig, chat: Chat, seed: int, dropped: Dropped, folder: Path) -> Sequence[_Chosen]:
    """Split first; then drop, tokenise, and keep at most as many as asked for. Training conversations come first.

    What is chosen stands in a file of `folder`: in memory are a few bytes per conversation.
    """
    out = held_out((r.subject for r in raw), config.held_out, seed)
    order = array("l", range(len(raw)))
    random.Random(seed).shuffle(order)
    wanted = {"held_out": max(1, round(config.conversations * config.held_out))}
    wanted["train"] = config.conversations - wanted["held_out"]
    kept: dict[Split, int] = {"train": 0, "held_out": 0}
    seen: set[str] = set()
    folder.mkdir(parents=True, exist_ok=True)
    files = {split: folder / f"{split}.jsonl" for split in kept}
    with ExitStack() as stack:
        streams = {split: stack.enter_context(path.open("w", encoding="utf-8")) for split, path in files.items()}
        for index in order:
            split: Split = "held_out" if out[index] else "train"
            if kept[split] >= wanted[split]:
                dropped["more than data.conversations"] += 1
                continue
            found = _tokenise(raw[index], split, config, chat, f"conversation {index + 1}")
            reason = found if isinstance(found, str) else "duplicate" if found.id in seen else None
            if reason:
                dropped[reason] += 1
            elif isinstance(found, _Chosen):
                seen.add(found.id)
                streams[split].write(found.model_dump_json() + "\n")
                kept[split] += 1
    for name, count in kept.items():
        if not count:
            raise BadInput(
                "data",
                found=f"no conversation left for {name}; dropped: {dict(dropped)}",
                expected="at least one",
                do="Give more or shorter prompts.",
            )
    with files["train"].open("ab") as everything, files["held_out"].open("rb") as behind:
        shutil.copyfileobj(behind, everything)
    return Lines(files["train"], lambda line, _: _Chosen.model_validate_json(line))


def _tokenise(raw: Raw, split: Split, config: DataConfig, chat: Chat, where: str) -> _Chosen | str:
    """The conversation in tokens, or why it is dropped."""
    if config.answers == "given":
        messages = _up_to_last(raw.messages, "assistant")
        if not messages:
            return "no assistant turn"
        given = chat.answered(messages, where)
        if given.prompt_length > config.prompt_tokens or len(given.tokens) > config.prompt_tokens + config.answer_tokens:
            return "too long"
        if sum(end - start for start, end in given.spans) < config.min_answer_tokens:
            return "answer too short"
        return _Chosen(id=sha256_json(given.tokens)[:16], split=split, tokens=given.tokens, answered=given)
    messages = _up_to_last(raw.messages, "user")
    if not messages:
        return "no user turn"
    prompt = chat.prompt(messages)
    return "prompt too long" if len(prompt) > config.prompt_tokens else _Chosen(id=sha256_json(prompt)[:16], split=split, tokens=prompt)


def _up_to_last(messages: list[Message], role: str) -> list[Message]:
    last = max((i for i, m in enumerate(messages) if m["role"] == role), default=-1)
    return messages[: last + 1]


def _chunks(
    chosen: Sequence[_Chosen], config: DataConfig, folder: Path, open_engine: Callable[[], AnswerEngine], tap: Tap | None, report: Report
) -> Iterator[Path]:
    """The file of each chunk, answered now or by an interrupted run. A chunk's answers depend on that chunk alone."""
    engine: AnswerEngine | None = None
    started, done, new_tokens = time.monotonic(), 0, 0
    for first in range(0, len(chosen), _CHUNK):
        chunk, path = chosen[first : first + _CHUNK], folder / "chunks" / f"{first:06d}.jsonl"
        if not path.exists():
            lines: dict[int, str] = {}
            pending = [c for c in chunk if c.answered is None]
            for number, given in enumerate(chunk):
                if given.answered:
                    lines[number] = _line(given, given.answered)
            if pending:
                engine = engine or open_engine()
                asked = [c.tokens for c in pending]
                for answer in engine.answer(asked, config.answer_tokens, boundaries=tap.boundaries if tap else None, batch=config.batch):
                    item = pending[answer.index]
                    start, end = len(item.tokens), len(answer.tokens)
                    lines[answer.index] = _line(item, Tokenised(answer.tokens, [(start, end)], start))
                    if tap and end - start >= config.min_answer_tokens:
                        tap.keep(folder / KEPT_FEATURES, item.id, answer)
                    new_tokens += end - start
                    speed = new_tokens / (time.monotonic() - started)
                    report.progress(done + len(lines), len(chosen), "conversations", {"answer_tok_s": speed})
            write_atomic(path, "".join(lines[number] + "\n" for number in range(len(chunk))))
        done += len(chunk)
        report.progress(done, len(chosen), "conversations")
        yield path


def _line(item: _Chosen, answered: Tokenised) -> str:
    return Conversation(
        id=item.id, split=item.split, tokens=answered.tokens, spans=answered.spans, prompt_length=answered.prompt_length
    ).model_dump_json()


def _write(folder: Path, parts: list[Path], config: DataConfig, dropped: Dropped) -> dict[str, Any]:
    """`conversations.jsonl` from the chunks, without answers that are too short; the counts."""
    path = folder / "conversations.jsonl"
    counts: dict[str, int] = {"train": 0, "held_out": 0}
    tokens = supervised = 0
    with path.open("w", encoding="utf-8") as out:
        for line in (line for part in parts for line in part.read_text(encoding="utf-8").splitlines()):
            conversation = Conversation.model_validate_json(line)
            answered = sum(end - start for start, end in conversation.spans)
            if answered < config.min_answer_tokens:
                dropped["answer too short"] += 1
                continue
            out.write(line + "\n")
            counts[conversation.split] += 1
            tokens += len(conversation.tokens)
            supervised += answered
    if not all(counts.values()):
        raise BadInput(
            "data.min_answer_tokens",
            found=f"{counts} conversations with such an answer",
            expected="some of each",
            do="Lower it, or give more prompts.",
        )
    if not 0 < supervised < tokens:
        raise ProofFailed(
            Verdict(
                verdict=Outcome.FAIL,
                kind=Kind.LOSS_MASK,
                stage="data",
                message=f"{supervised} of {tokens} tokens are supervised: the share has to lie between 0 and 1. "
                "Check the chat template and data.answers.",
                evidence={"supervised": supervised, "tokens": tokens},
            )
        )
    for part in parts:
        part.unlink()
    (folder / "chunks").rmdir()
    return {
        "sha256": sha256_file(path),
        **counts,
        "tokens": tokens,
        "supervised_tokens": supervised,
        "dropped": dict(sorted((reason, count) for reason, count in dropped.items() if count)),
    }
