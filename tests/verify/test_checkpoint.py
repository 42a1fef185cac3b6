"""The loader reads three forms and refuses every broken or odd folder with a message of one kind: no traceback of a library."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tasks.verdict import BadInput, Outcome
from tasks.verify.checkpoint import check_tensors, read_checkpoint
from tasks.verify.drafter import load_drafter
from tests.verify.drafters import DRAFT_VOCAB, HIDDEN, VOCAB, config, random_drafter, rewrite, tensors, write

WEIGHTS = "model.safetensors"


def _truncate(folder: Path) -> None:
    os.truncate(folder / WEIGHTS, (folder / WEIGHTS).stat().st_size // 2)


def _huge(folder: Path) -> None:
    with (folder / WEIGHTS).open("r+b") as file:
        file.truncate(1 << 40)


def _pickled(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04K\x01.")


def _odd_header(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes(struct.pack("<Q", 1 << 60) + b"{}")


def _twice(folder: Path) -> None:
    weights = load_file(folder / WEIGHTS)
    save_file({**weights, "layers.0.hidden_norm.weight": weights["midlayer.hidden_norm.weight"].clone()}, folder / WEIGHTS)


def _outside(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder.parent / "elsewhere.safetensors")
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps({"weight_map": {"fc.weight": "../elsewhere.safetensors"}}))


def _missing_shard(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps({"weight_map": {"fc.weight": "model-1.safetensors"}}))


def _text(name: str, text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(text) and None


def _config(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: rewrite(folder, **changes) and None


UNREADABLE: dict[str, tuple[Callable[[Path], None], str]] = {
    "truncated": (_truncate, "cut short"),
    "huge": (_huge, "at most"),
    "pickle": (_pickled, "pickle"),
    "odd header": (_odd_header, "safetensors"),
    "empty": (_text(WEIGHTS, ""), "safetensors"),
    "a tensor under two names": (_twice, "twice"),
    "index that leads out": (_outside, "plain file names"),
    "index without its file": (_missing_shard, "every file"),
    "no weights": (lambda folder: (folder / WEIGHTS).unlink(), WEIGHTS),
    "no config": (lambda folder: (folder / "config.json").unlink(), "config.json"),
    "config that is no JSON": (_text("config.json", "{"), "JSON"),
    "config that is a list": (_text("config.json", "[]"), "JSON object"),
    "config nested without end": (_text("config.json", "[" * 100_000), "JSON"),
    "config of two megabytes": (_text("config.json", " " * (2 << 20)), "1 MiB"),
    "another architecture": (_config(architectures=["LlamaForCausalLM"]), "LlamaForCausalLM"),
    "an MLA drafter": (_config(architectures=["Eagle3DeepseekV2ForCausalLM"]), "MLA"),
    "no draft_vocab_size": (_config(draft_vocab_size=None), "draft_vocab_size"),
    "a size that is a text": (_config(hidden_size="64"), "hidden_size"),
    "a size without end": (_config(hidden_size=10**12), "hidden_size"),
    "a negative size": (_config(intermediate_size=-1), "intermediate_size"),
    "heads that do not divide": (_config(num_key_value_heads=3), "divide"),
    "two layers": (_config(num_hidden_layers=2), "num_hidden_layers"),
    "a tied head": (_config(tie_word_embeddings=True), "tie_word_embeddings"),
    "attention bias": (_config(attention_bias=True), "attention_bias"),
    "a quantisation": (_config(quantization_config={"bits": 4}), "quantization_config"),
    "an unknown RoPE": (_config(rope_parameters={"rope_type": "yarn", "rope_theta": 1e4}), "RoPE"),
    "a theta that is no number": (_config(rope_parameters={"rope_theta": "nan"}), "rope_theta"),
    "a flag that is a text": (_config(norm_output="false"), "norm_output"),
    "ids that are texts": (_config(eagle_config={"eagle_aux_hidden_state_layer_ids": ["1"]}), "layer_ids"),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_what_cannot_be_read_is_refused_by_name(tmp_path: Path, case: str) -> None:
    folder = random_drafter(tmp_path / "drafter")
    breaks, expected = UNREADABLE[case]
    breaks(folder)
    with pytest.raises(BadInput, match=expected):
        read_checkpoint(folder)


def _filled(name: str, value: float) -> Callable[[Path], Path]:
    return lambda folder: rewrite(folder, add={name: torch.full_like(load_file(folder / WEIGHTS)[name], value)})


FAULTY: dict[str, tuple[Callable[[Path], Path], str, str]] = {
    "no head": (lambda f: rewrite(f, drop="lm_head.weight"), "tensors", "missing: lm_head.weight"),
    "no q_proj": (lambda f: rewrite(f, drop="midlayer.self_attn.q_proj.weight"), "tensors", "q_proj"),
    "no d2t": (lambda f: rewrite(f, drop="d2t"), "tensors", "d2t"),
    "one more": (lambda f: rewrite(f, add={"extra.weight": torch.ones(2)}), "tensors", "unexpected: extra.weight"),
    "another name": (lambda f: rewrite(f, drop="fc.weight", add={"fc2.weight": torch.ones(HIDDEN, 3 * HIDDEN)}), "tensors", "fc2.weight"),
    "another shape": (lambda f: rewrite(f, add={"norm.weight": torch.ones(HIDDEN + 1)}), "tensors", "norm.weight is F32"),
    "another dtype": (lambda f: rewrite(f, add={"lm_head.weight": torch.ones(DRAFT_VOCAB, HIDDEN, dtype=torch.int8)}), "tensors", "I8"),
    "NaN": (_filled("fc.weight", float("nan")), "tensors", "no numbers"),
    "infinite": (_filled("norm.weight", float("inf")), "tensors", "no numbers"),
    "all zero": (_filled("midlayer.mlp.up_proj.weight", 0.0), "tensors", "0 everywhere"),
    "input_norm unasked": (lambda f: rewrite(f, add={"input_norm.weight": torch.ones(3 * HIDDEN)}), "architecture-flags", "input_norm"),
    "fc_norm absent": (lambda f: rewrite(f, fc_norm=True), "architecture-flags", "fc_norm.0.weight"),
    "one id too many": (
        lambda f: rewrite(f, eagle_config={"eagle_aux_hidden_state_layer_ids": [0, 1, 2, 3]}),
        "layer-boundaries",
        "fc.weight",
    ),
}


@pytest.mark.parametrize("case", FAULTY)
def test_a_faulty_tensor_is_named_and_never_loaded(tmp_path: Path, case: str) -> None:
    tamper, kind, expected = FAULTY[case]
    checkpoint = read_checkpoint(tamper(random_drafter(tmp_path)))
    (check,) = check_tensors(checkpoint)
    assert (check.verdict, check.kind) == (Outcome.FAIL, kind)
    assert expected in check.message
    with pytest.raises(BadInput):
        load_drafter(checkpoint, torch.randn(VOCAB, HIDDEN))


def test_the_forms_of_a_checkpoint_read_the_same(tmp_path: Path) -> None:
    settings, embedding = config(norm_output=True), torch.randn(VOCAB, HIDDEN)
    weights = tensors(settings)
    ours = load_drafter(read_checkpoint(write(tmp_path / "sglang", settings, weights)), embedding)
    new_names = {f"model.{name.replace('midlayer.', 'layers.0.')}" if "midlayer" in name else name: w for name, w in weights.items()}
    bare = {key: value for key, value in settings.items() if key not in ("eagle_config", "rope_parameters")} | {"rope_theta": 10000.0}
    for form, folder in {
        "sglang": write(tmp_path / "new", settings, new_names),
        "original": write(tmp_path / "original", bare, {**weights, "t2d": torch.ones(VOCAB, dtype=torch.bool)}),
    }.items():
        checkpoint = read_checkpoint(folder)
        other = load_drafter(checkpoint, embedding)
        assert checkpoint.architecture.form == form
        assert checkpoint.architecture.rope == ours.architecture.rope
        assert all(torch.equal(other.weights[name], ours.weights[name]) for name in ours.weights)


def test_a_sharded_checkpoint_reads_like_one_file(tmp_path: Path) -> None:
    folder = random_drafter(tmp_path)
    weights = load_file(folder / WEIGHTS)
    whole = load_drafter(read_checkpoint(folder), torch.zeros(VOCAB, HIDDEN))
    (folder / WEIGHTS).unlink()
    names = sorted(weights)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in parts.items():
        save_file({name: weights[name] for name in part}, folder / file)
    index = {name: file for file, part in parts.items() for name in part}
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps({"weight_map": index}))
    sharded = load_drafter(read_checkpoint(folder), torch.zeros(VOCAB, HIDDEN))
    assert all(torch.equal(sharded.weights[name], whole.weights[name]) for name in whole.weights)


def test_another_targets_embedding_is_refused(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(random_drafter(tmp_path))
    with pytest.raises(BadInput, match="another target"):
        load_drafter(checkpoint, torch.zeros(VOCAB + 1, HIDDEN))
