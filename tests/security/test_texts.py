"""Prompts, chat templates and configs that others wrote are data: text stays text, and a template stays in its sandbox."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tasks import config as configs
from tasks.config import TargetConfig
from tasks.data import read_prompts, read_workload
from tasks.report import Silent
from tasks.store import Store
from tasks.target import prepare_target
from tasks.verdict import BadInput

Read = Callable[..., Any]


@pytest.fixture
def target(tiny_target: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_target, tmp_path / "target"))


@pytest.fixture
def words(target: Path) -> dict[str, int]:
    """The target's tokens."""
    return dict(json.loads((target / "tokenizer.json").read_text())["model"]["vocab"])


def read(target: Path, line: str, how: Read = read_prompts) -> Any:
    path = target.parent / "prompts.jsonl"
    path.write_text(line + "\n")
    product = prepare_target(TargetConfig(source=str(target), name="tiny"), store=Store(), report=Silent())
    return how(path, target=product, count=1, longest=100)


def said(content: str) -> str:
    return json.dumps({"messages": [{"role": "user", "content": content}]})


@pytest.mark.parametrize(
    "content", ["{{ 'w1' }}", "{% for x in [1] %} w1 {% endfor %}", "{{ ''.__class__.__mro__ }}", "{# w1 #}", "{{ m['content'] }}"]
)
def test_a_template_in_a_prompt_stays_text(target: Path, words: dict[str, int], content: str) -> None:
    """Each word of it is a token of its own: what the target's template writes around it, and unknown words where it is not plain."""
    (prompt,) = read(target, said(content))
    assert prompt == [words["<user>"], *(words.get(word, words["<unk>"]) for word in content.split()), words["<assistant>"]]


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append('x') }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{{ ().__class__.__base__.__subclasses__() }}",
        "{{ raise_exception.__globals__['__builtins__'] }}",
        "{{ lipsum.__globals__['os'].popen('id').read() }}",
        "{% for i in range(1000000000) %}x{% endfor %}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{{ raise_exception('roles must alternate') }}",
        "{% if %}",
    ],
)
def test_a_template_that_reaches_out_is_one_clear_error(target: Path, template: str) -> None:
    (target / "chat_template.jinja").write_text(template)
    with pytest.raises(BadInput, match="chat template"):
        read(target, said("w1"))


def test_an_attribute_that_a_template_may_not_see_is_empty(target: Path, words: dict[str, int]) -> None:
    (target / "chat_template.jinja").write_text("w1 {{ ''.__class__ }} w2")
    (prompt,) = read(target, said("w3"))
    assert prompt == [words["w1"], words["w2"]]


@pytest.mark.parametrize("how", [read_prompts, lambda file, **rest: read_workload([file], **rest)])
@pytest.mark.parametrize("line", ["[" * 100_000, '{"messages": ' + "[" * 100_000, "9" * 10_000, said("\ud800")])
def test_an_odd_line_of_prompts_is_one_clear_error(target: Path, how: Read, line: str) -> None:
    with pytest.raises(BadInput, match=r"prompts\.jsonl"):
        read(target, line, how)


def test_a_tokenizer_that_is_none_is_one_clear_error(target: Path) -> None:
    (target / "tokenizer.json").write_text("{}")
    with pytest.raises(BadInput, match="a tokenizer that cannot be loaded"):
        read(target, said("w1"))


@pytest.mark.parametrize(
    "value",
    [
        "!!python/object/apply:os.mkdir ['{ran}']",
        "!!python/object/new:os.mkdir ['{ran}']",
        "!!python/name:os.system ''",
        "!!python/module:os ''",
        "!include /etc/passwd",
    ],
)
def test_a_config_makes_no_objects(tmp_path: Path, value: str) -> None:
    ran, path = tmp_path / "ran", tmp_path / "c.yaml"
    value = value.format(ran=ran)
    path.write_text(f"target: {value}")
    with pytest.raises(BadInput, match="no YAML"):
        configs.load(path)
    path.write_text("target: {source: x, name: x}")
    with pytest.raises(BadInput, match="no YAML"):
        configs.load(path, [f"target.name={value}"])
    assert not ran.exists()


def test_aliases_of_aliases_are_not_written_out(tmp_path: Path) -> None:
    """Nine levels of nine: a few hundred bytes that stand for gigabytes."""
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 10)]
    path = tmp_path / "c.yaml"
    path.write_text("\n".join(levels) + "\ntarget: {source: *a9, name: *a9}\n")
    with pytest.raises(BadInput, match=r"target\.source") as caught:
        configs.load(path)
    assert len(str(caught.value)) < 10_000


@pytest.mark.parametrize("name", ["../x", "a/b", "..", ".", "", "a\n", "-x"])
def test_a_targets_name_does_not_climb(tmp_path: Path, name: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(json.dumps({"target": {"source": "x", "name": name}}))
    with pytest.raises(BadInput, match=r"target\.name"):
        configs.load(path)
