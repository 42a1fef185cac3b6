"""Model folders that others made are data: none runs code, is read without end, or ends in anything but one clear error."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tasks.config import TargetConfig
from tasks.products import TargetProduct
from tasks.report import Silent
from tasks.store import Store, read_small
from tasks.target import open_target, prepare_target
from tasks.verdict import BadInput
from tasks.verify.checkpoint import read_checkpoint
from tasks.wiring.probes import read_probes
from tasks.wiring.record import WiringRecord
from tests.security.spoil import SECRET, WEIGHTS, Spoil, armed, device, edited, goes_off, header, index, link_to_secret, pipe, tensor, text
from tests.verify.drafters import random_drafter, rewrite


@pytest.fixture
def ran(tmp_path: Path) -> Path:
    """What exists once foreign code has run."""
    return tmp_path / "ran"


@pytest.fixture
def drafter(tmp_path: Path) -> Path:
    return random_drafter(tmp_path / "drafter")


@pytest.fixture
def target(tiny_target: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_target, tmp_path / "target"))


def prepared(folder: Path) -> TargetProduct:
    return prepare_target(TargetConfig(source=str(folder), name="tiny"), store=Store(), report=Silent())


def test_the_bomb_goes_off_where_it_is_unpickled(ran: Path) -> None:
    assert goes_off(ran)


def test_nothing_beside_a_drafters_weights_is_run(drafter: Path, ran: Path) -> None:
    armed(drafter, ran)
    rewrite(drafter, auto_map={"AutoConfig": "configuration_evil.Evil", "AutoModel": "modeling_evil.Evil"})
    checkpoint = read_checkpoint(drafter)
    assert all(bool(torch.isfinite(checkpoint.tensor(name).float()).all()) for name in checkpoint.stored)
    assert not ran.exists()


ODD_DRAFTERS: dict[str, Spoil] = {
    "a config without end": device("config.json"),
    "a config that never comes": pipe("config.json"),
    "a config that is a link to a secret": link_to_secret("config.json"),
    "weights without end": device(WEIGHTS),
    "weights that never come": pipe(WEIGHTS),
    "weights that are a link to a secret": link_to_secret(WEIGHTS),
    "a header of 2^63 bytes": header(b"{}", 1 << 63),
    "a header that is more than the file": header(b"{}", 3),
    "a header nested without end": header(b"[" * 100_000),
    "a tensor of 2^64 numbers": tensor([1 << 32, 1 << 32], [0, 0]),
    "a tensor beyond the file": tensor([1 << 40], [0, 1 << 42]),
    "a tensor that ends before it begins": tensor([4], [16, 0]),
    "an index that climbs": index("../elsewhere.safetensors"),
    "an index with an absolute path": index("/etc/passwd"),
}


@pytest.mark.parametrize("case", ODD_DRAFTERS)
def test_an_odd_drafter_is_one_clear_error(drafter: Path, case: str) -> None:
    ODD_DRAFTERS[case](drafter)
    with pytest.raises(BadInput) as caught:
        read_checkpoint(drafter)
    assert SECRET not in str(caught.value) and "root:" not in str(caught.value)
    assert str(drafter) in str(caught.value)


def test_weights_that_a_hubs_cache_links_to_are_read(drafter: Path, tmp_path: Path) -> None:
    """Its snapshots are links to blobs in another folder: a link alone is no fault."""
    expected = load_file(drafter / WEIGHTS)["fc.weight"]
    (drafter / WEIGHTS).rename(tmp_path / "blob")
    (drafter / WEIGHTS).symlink_to(tmp_path / "blob")
    assert torch.equal(read_checkpoint(drafter).tensor("fc.weight"), expected)


@pytest.mark.parametrize("spoil", [device("wiring.json"), pipe("wiring.json"), link_to_secret("wiring.json")])
def test_an_odd_record_is_one_clear_error(drafter: Path, spoil: Spoil) -> None:
    spoil(drafter)
    with pytest.raises(BadInput, match="wiring record") as caught:
        WiringRecord.read(drafter)
    assert SECRET not in str(caught.value)


def test_probes_whose_metadata_never_ends_are_one_clear_error(drafter: Path) -> None:
    save_file({"0.x": torch.zeros(1)}, drafter / "probes.safetensors", metadata={"draftproof": "[" * 100_000})
    with pytest.raises(BadInput, match="golden probes"):
        read_probes(drafter)


def test_a_small_file_is_never_read_beyond_its_limit(tmp_path: Path) -> None:
    (tmp_path / "five").write_text("12345")
    assert read_small(tmp_path / "five", 5) == "12345"
    with pytest.raises(ValueError, match="5 bytes"):
        read_small(tmp_path / "five", 4)
    with pytest.raises(OSError, match="no such file"):
        read_small(Path("/dev/zero"))


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "generation_config.json"])
def test_a_target_whose_python_was_not_allowed_is_refused(target: Path, ran: Path, name: str) -> None:
    armed(target, ran)
    edited(target / name, auto_map={"AutoConfig": "evil.Evil", "AutoTokenizer": ["evil.Evil", None], "AutoModelForCausalLM": "evil.Evil"})
    with pytest.raises(BadInput, match=rf"{name}: found auto_map.*trust_remote_code"):
        prepared(target)
    assert not ran.exists()


def test_nothing_beside_a_targets_weights_is_run(target: Path, ran: Path) -> None:
    armed(target, ran)
    product = prepared(target)
    opened = open_target(product, device="cpu", dtype="float32")
    assert opened.facts.vocab_size == 96 and not ran.exists()
    (target / WEIGHTS).rename(target / "odd-name.safetensors")  # where the pickle is all that transformers would look for
    with pytest.raises(BadInput, match="cannot load"):
        open_target(prepared(target), device="cpu", dtype="float32")
    assert not ran.exists()


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (index("../elsewhere.safetensors"), "files of the folder"),
        (index("/etc/passwd"), "files of the folder"),
        (index("pytorch_model.bin"), "files of the folder"),
        (device("config.json"), "nothing readable"),
        (pipe("config.json"), "nothing readable"),
        (pipe(WEIGHTS), "no weights"),
        (device("chat_template.jinja"), "chat template"),
        (text("config.json", "[" * 100_000), "nothing readable"),
        (text("config.json", " " * (65 << 20)), "nothing readable"),
        (lambda folder: edited(folder / "config.json", hidden_size="64"), "positive numbers"),
        (lambda folder: edited(folder / "config.json", vocab_size=None), "positive numbers"),
    ],
)
def test_an_odd_target_is_one_clear_error(target: Path, spoil: Spoil, says: str) -> None:
    spoil(target)
    with pytest.raises(BadInput, match=says):
        prepared(target)


def test_a_targets_weights_that_are_none_are_one_clear_error(target: Path) -> None:
    header(b"{}", 1 << 63)(target)
    with pytest.raises(BadInput, match="cannot load"):
        open_target(prepared(target), device="cpu", dtype="float32")
