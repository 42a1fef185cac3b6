"""Prompts, files, the split and the loss mask."""

from __future__ import annotations

import json
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.config import DataConfig, TargetConfig
from tasks.data import make_data
from tasks.data.builtin import python_docs
from tasks.data.chat import Chat
from tasks.data.files import read_jsonl
from tasks.data.source import Source
from tasks.data.split import held_out, near_duplicates
from tasks.device import Placement
from tasks.lines import Joined
from tasks.products import Conversation, DataProduct, TargetProduct
from tasks.report import Silent
from tasks.store import Store
from tasks.target import prepare_target
from tasks.verdict import BadInput, ProofFailed
from tasks.wiring.answering import AnswerEngine

FOX = "the quick brown fox jumps over the lazy dog near the river bank today"


def unopened() -> AnswerEngine:
    raise AssertionError("given answers need no engine")


@pytest.fixture
def target(tiny_target: Path) -> TargetProduct:
    return prepare_target(TargetConfig(source=str(tiny_target), name="tiny"), store=Store(), report=Silent())


def made(target: TargetProduct, path: Path, **options: object) -> DataProduct:
    values = {"prompts": str(path), "answers": "given", "held_out": 0.2, "min_answer_tokens": 3, **options}
    return make_data(
        DataConfig.model_validate(values),
        seed=0,
        target=target,
        open_engine=unopened,
        placement=Placement(device="cpu", dtype="float32"),
        tap=None,
        store=Store(),
        report=Silent(),
    )


def turns(*texts: str) -> dict[str, list[dict[str, str]]]:
    return {"messages": [{"role": "user" if i % 2 == 0 else "assistant", "content": text} for i, text in enumerate(texts)]}


def file_of(path: Path, *values: object) -> Path:
    path.write_text("".join(json.dumps(v) + "\n" for v in values))
    return path


def test_there_are_enough_prompts_and_always_the_same_ones() -> None:
    prompts = python_docs()
    assert len(prompts) > 3000
    assert [p.messages for p in prompts] == [p.messages for p in python_docs()]


def test_near_duplicates_stay_together() -> None:
    texts = [FOX, "entirely other words stand here and nothing is shared with it", FOX.replace("today", "now"), FOX.upper()]
    assert near_duplicates(texts) == [0, 1, 0, 0]
    many = [f"w{i} x{i} y{i} z{i} a{i}" for i in range(40)] + ["the very same words of a docstring"] * 80
    out = held_out(many, 0.1, seed=3)
    assert sum(out) == 12 and not any(out[40:]), "a group of 80 does not fit into 12"
    assert out == held_out(many, 0.1, seed=3) != held_out(many, 0.1, seed=4)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "no JSON"),
        ("[]", "neither"),
        ('{"messages": [{"role": "user"}]}', "without text"),
        ('{"messages": [{"role": "robot", "content": "x"}]}', "robot"),
    ],
)
def test_a_line_that_is_no_conversation_is_named(tmp_path: Path, line: str, says: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps(turns("a", "b")) + "\n" + line + "\n")
    with pytest.raises(BadInput, match=rf"x\.jsonl:2: .*{says}"):
        read_jsonl(path)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("\n")
    with pytest.raises(BadInput, match="no conversation"):
        read_jsonl(tmp_path / "x.jsonl")


def test_sharegpt_and_messages_are_the_same_conversation(tmp_path: Path) -> None:
    share = {"conversations": [{"from": "human", "value": "w1"}, {"from": "gpt", "value": "w2"}]}
    one, other = read_jsonl(file_of(tmp_path / "x.jsonl", share, turns("w1", "w2")))
    assert one == other


def test_every_assistant_turn_is_supervised_and_nothing_else(target: TargetProduct, tmp_path: Path) -> None:
    values = [turns(f"w{i} w{i + 1}", f"w{i} w3", "w4", f"w5 w6 w{i + 2}") for i in range(20)]
    product = made(target, file_of(tmp_path / "x.jsonl", *values))
    chat = Chat.load(target)
    for line in product.conversations.read_text().splitlines():
        c = Conversation.model_validate_json(line)
        first, second = (chat._tokenizer.decode(c.tokens[a:b]) for a, b in c.spans)
        assert first.endswith("w3 </s>") and second.startswith("w5 w6") and second.endswith("</s>")
        assert c.prompt_length == c.spans[-1][0]
    assert (product.train, product.held_out) == (16, 4)
    assert product.supervised_tokens == 20 * (3 + 4)


def test_what_is_dropped_is_counted(target: TargetProduct, tmp_path: Path) -> None:
    good = [turns(f"w{i}", f"w{i} w1 w2 w3") for i in range(10)]
    values = [*good, good[0], turns("w70"), turns("w71 " * 200, "w1 w2 w3"), turns("w72", "w1")]
    product = made(target, file_of(tmp_path / "x.jsonl", *values), held_out=0.1)
    assert product.train + product.held_out + sum(product.dropped.values()) == len(values)
    assert {"duplicate", "no assistant turn", "too long", "answer too short"} >= set(product.dropped)
    assert len(product.dropped) >= 3


def test_a_template_that_changes_what_was_said_fails_as_loss_mask(target: TargetProduct) -> None:
    chat = Chat.load(target)
    chat._tokenizer.chat_template = chat._tokenizer.chat_template.replace("m['content']", "m['content'].replace('w1', '')")
    with pytest.raises(ProofFailed) as error:
        chat.answered(turns("w2", "w1 w3")["messages"], "conversation 1")
    assert error.value.verdict.kind == "loss-mask"


def peak(work: Callable[[], object]) -> int:
    """Largest number of bytes of Python's objects at once."""
    tracemalloc.start()
    work()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most


def test_memory_does_not_grow_with_the_corpus(target: TargetProduct, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.data.make._CHUNK", 64)

    def corpus(count: int) -> Path:
        words = [" ".join(f"w{word}" for word in random.Random(i).choices(range(50), k=60)) for i in range(count)]
        return file_of(tmp_path / f"{count}.jsonl", *(turns(text, text) for text in words))

    small, large = corpus(200), corpus(1800)
    room = {"conversations": 5000, "prompt_tokens": 500, "answer_tokens": 500}
    made(target, small, **room)  # what is imported and kept once
    grown = peak(lambda: made(target, large, **room)) - peak(lambda: made(target, small, held_out=0.21, **room))
    kept = made(target, large, **room)
    bytes_of_each = kept.conversations.stat().st_size / (kept.train + kept.held_out)
    # An id, a place in the file, a side of the split; not the texts, the tokens, or what either is made of.
    assert grown / 1600 < 300 < bytes_of_each
    few = peak(lambda: max(len(c.tokens) for c in made(target, small, **room).rows()))
    many = peak(lambda: max(len(c.tokens) for c in kept.rows()))
    assert many - few < 1600 * 40


def test_files_are_dropped_into_a_folder(target: TargetProduct, tmp_path: Path) -> None:
    """Read in the order of their names; what counts is what stands in them."""
    folder = tmp_path / "chats"
    folder.mkdir()
    with pytest.raises(BadInput, match=r"no \*\.jsonl in"):
        made(target, folder)
    said = [turns(f"w{i} w{i + 1}", "w3 w4 w5 w6") for i in range(20)]
    file_of(folder / "a.jsonl", *said[:15])
    (folder / ".b.jsonl").write_text("half of a li")  # still being copied
    first = made(target, folder)
    assert first.train + first.held_out == 15
    (folder / "a.jsonl").rename(folder / "b.jsonl")
    assert made(target, folder) == first, "a name says nothing"
    file_of(folder / "c.jsonl", *said[15:])
    second = made(target, folder)
    assert second.folder != first.folder and second.train + second.held_out == 20
    assert list(Source.of(str(folder)).read()) == list(read_jsonl(file_of(tmp_path / "all.jsonl", *said)))


def test_joined_is_a_sequence() -> None:
    joined = Joined([[1, 2], [], [3]])
    assert (list(joined), len(joined), joined[0], joined[2], joined[-1], joined[1:]) == ([1, 2, 3], 3, 1, 3, 3, [2, 3])
    with pytest.raises(IndexError):
        joined[3]
