"""What may be a target, and what its print notices."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.config import TargetConfig
from tasks.products import TargetProduct
from tasks.report import Silent
from tasks.store import Store
from tasks.target import prepare_target
from tasks.verdict import BadInput


def prepared(source: str | Path) -> TargetProduct:
    return prepare_target(TargetConfig(source=str(source), name="tiny"), store=Store(), report=Silent())


def edit_config(**values: object) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    return edit


def remove(pattern: str) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        for path in folder.glob(pattern):
            path.unlink()

    return edit


def pickle_instead(folder: Path) -> None:
    remove("*.safetensors")(folder)
    (folder / "pytorch_model.bin").write_bytes(b"")


@pytest.fixture
def folder(tiny_target: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_target, tmp_path / "target"))


def test_a_local_folder_is_used_in_place(folder: Path) -> None:
    product = prepared(folder)
    assert product.folder == folder
    assert (product.print.num_layers, product.print.hidden_size, product.print.vocab_size) == (6, 64, 96)
    assert prepared(folder).sha256 == product.sha256


def test_a_folder_may_have_a_colon_in_its_name(tiny_target: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_target, tmp_path / "run:3"))
    assert prepared(folder).folder == folder


def test_a_product_says_whether_the_folders_python_may_run(tiny_target: Path) -> None:
    config = TargetConfig(source=str(tiny_target), name="tiny", trust_remote_code=True)
    assert prepare_target(config, store=Store(), report=Silent()).trust_remote_code
    assert not prepared(tiny_target).trust_remote_code


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (edit_config(model_type="gemma3", architectures=["Gemma3ForCausalLM"]), "gemma3"),
        (edit_config(auto_map={"AutoModel": "x.Y"}), "trust_remote_code"),
        (remove("config.json"), "config.json"),
        (remove("tokenizer.json"), "tokenizer"),
        (remove("*.safetensors"), "no weights"),
        (pickle_instead, "pickled weights"),
        (lambda folder: (remove("chat_template.jinja")(folder), (folder / "tokenizer_config.json").write_text("{}")), "chat template"),
    ],
)
def test_what_cannot_be_a_target_is_refused_by_name(folder: Path, spoil: Callable[[Path], object], says: str) -> None:
    spoil(folder)
    with pytest.raises(BadInput, match=says):
        prepared(folder)


@pytest.mark.parametrize("source", ["pypi:no-such-package-here", "pypi:pydantic", "ftp:x"])
def test_sources_that_hold_no_target_are_refused(source: str) -> None:
    with pytest.raises(BadInput, match=r"target\.source"):
        prepared(source)


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("config", edit_config(rope_theta=5.0)),
        ("chat_template", lambda folder: (folder / "chat_template.jinja").write_text("{{ messages }}")),
        ("weights", lambda folder: (folder / "more.safetensors").write_bytes(b"x")),
        ("tokenizer", lambda folder: (folder / "added_tokens.json").write_text("{}")),
    ],
)
def test_the_print_names_the_part_that_changed(folder: Path, part: str, change: Callable[[Path], object]) -> None:
    before = prepared(folder).print.model_dump()
    change(folder)
    after = prepared(folder).print.model_dump()
    assert {name for name in before if before[name] != after[name]} == {part}
