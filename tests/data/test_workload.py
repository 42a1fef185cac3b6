"""Benchmark prompts by category, in their own form and in the published ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tasks.config import TargetConfig
from tasks.data import read_workload
from tasks.products import TargetProduct
from tasks.report import Silent
from tasks.store import Store
from tasks.target import prepare_target
from tasks.verdict import BadInput

# A line each, in the form in which the sets are published.
MT_BENCH = {"question_id": 81, "category": "writing", "turns": ["w1 w2", "w3 w4"], "reference": []}
GSM8K = {"question": "w5 w6 w7", "answer": "w8 #### 72"}
HUMANEVAL = {"task_id": "HumanEval/0", "prompt": "w9 w10", "entry_point": "w9", "canonical_solution": "w11", "test": "w12"}
OWN = {"prompt": "w13", "category": "short"}
CHAT = {"messages": [{"role": "user", "content": "w14"}, {"role": "assistant", "content": "w15"}, {"role": "user", "content": "w16"}]}


@pytest.fixture
def target(tiny_target: Path) -> TargetProduct:
    return prepare_target(TargetConfig(source=str(tiny_target), name="tiny"), store=Store(), report=Silent())


def written(path: Path, *lines: Any) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_every_form_is_read_and_has_its_category(target: TargetProduct, tmp_path: Path) -> None:
    files = [written(tmp_path / "all.jsonl", MT_BENCH, GSM8K, HUMANEVAL, OWN), written(tmp_path / "talks.jsonl", CHAT)]
    found = read_workload(files, target=target, count=10, longest=64)
    assert [prompt.category for prompt in found] == ["writing", "gsm8k", "humaneval", "short", "talks"]
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(target.folder)
    texts = {prompt.category: tokenizer.decode(prompt.tokens) for prompt in found}
    assert "w2" in texts["writing"] and "w3" not in texts["writing"]  # the first turn
    assert "w7" in texts["gsm8k"] and "w8" not in texts["gsm8k"]
    assert "w10" in texts["humaneval"] and "w11" not in texts["humaneval"]
    assert "w15" in texts["talks"] and texts["talks"].endswith("<assistant>")


def test_categories_come_in_turn_and_long_prompts_not_at_all(target: TargetProduct, tmp_path: Path) -> None:
    lines = [{"prompt": "w1", "category": "a"}] * 5 + [{"prompt": "w2", "category": "b"}, {"prompt": "w3 " * 90, "category": "c"}]
    found = read_workload([written(tmp_path / "f.jsonl", *lines)], target=target, count=4, longest=32)
    assert [prompt.category for prompt in found] == ["a", "b", "a", "a"]


@pytest.mark.parametrize("line", [{"text": "w1"}, {"prompt": 3}, {"turns": []}, {"messages": [{"role": "user"}]}, {"messages": []}, [1], 7])
def test_a_line_of_no_known_form_is_named(line: Any, target: TargetProduct, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"f\.jsonl:2: found a line of no known form"):
        read_workload([written(tmp_path / "f.jsonl", OWN, line)], target=target, count=4, longest=32)


def test_no_file_and_no_prompt(target: TargetProduct, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="No such file"):
        read_workload([tmp_path / "none.jsonl"], target=target, count=4, longest=32)
    with pytest.raises(BadInput, match="no prompt of at most 1 tokens"):
        read_workload([written(tmp_path / "f.jsonl", OWN)], target=target, count=4, longest=1)
