"""The contract against `llama_eagle3.py` of the pinned SGLang: its parameters, its `load_weights`, its reading of the config.

A name, shape or key that it drops or misses makes a server that is healthy and accepts nothing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tasks.wiring.checkpoint_contract import served_tensors
from tasks.wiring.rope import resolve
from tests.export.made import Made, make
from tests.sglang_own import ask, start

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "norm_before_fc": {"norm_before_fc": True, "norm_output": True},
    "fc_norm": {"fc_norm": True},
    "five features": {"boundaries": (0, 1, 2, 4, 5)},
    "two features": {"boundaries": (1, 3)},
    "whole vocabulary": {"draft_size": 96, "identity": True},
    "another theta": {"layer": {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}, "rms_norm_eps": 1e-6}},
    "linear rope": {"layer": {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}},
    "head_dim": {"layer": {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 24}},
}
# SGLang's fused parameters, taken apart as a checkpoint has them.
FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
HEAD_MULTIPLE = 64  # ParallelLMHead pads its rows


@pytest.fixture(scope="module", autouse=True)
def sglang() -> None:
    start()


@pytest.fixture(scope="module", params=VARIANTS)
def served(request: Any, tmp_path_factory: pytest.TempPathFactory, tiny_target: Path) -> tuple[Made, Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("contract")
    made = make(folder, tiny_target, **VARIANTS[request.param])
    exported = made.export(folder / "home").folder
    return made, exported, ask({"load": str(exported)})


def own_shapes(parameters: dict[str, list[int]]) -> dict[str, list[int]]:
    """Parameters without the outer module's prefix."""
    return {name.removeprefix("model."): shape for name, shape in parameters.items()}


def test_each_tensor_is_consumed_and_each_parameter_written(served: tuple[Made, Path, dict[str, Any]]) -> None:
    _, _, sglang = served
    assert "error" not in sglang, sglang
    assert sglang["dropped"] == ["t2d"] or (sglang["dropped"] == [] and sglang["target_ids"] is None)
    assert sglang["unloaded"] == ["model.embed_tokens.weight"]  # the target's, put there by set_embed
    assert sglang["partly"] == []


def test_names_and_shapes_are_its_parameters(served: tuple[Made, Path, dict[str, Any]]) -> None:
    _, exported, sglang = served
    config = json.loads((exported / "config.json").read_text())
    ours, theirs = served_tensors(config), own_shapes(sglang["parameters"])
    theirs.pop("embed_tokens.weight")
    fused: dict[str, list[int]] = {}
    for name, shape in ours.items():
        part = name.split(".")[-2]
        whole = next((f for f, parts in FUSED.items() if part in parts), part)
        key = name.replace(part, whole)
        fused[key] = [fused[key][0] + shape[0], *shape[1:]] if key in fused else list(shape)
    padded = -(-fused["lm_head.weight"][0] // HEAD_MULTIPLE) * HEAD_MULTIPLE
    fused["lm_head.weight"][0] = padded
    assert fused == theirs


def test_each_key_of_the_config_arrives(served: tuple[Made, Path, dict[str, Any]]) -> None:
    made, exported, sglang = served
    config, trained = json.loads((exported / "config.json").read_text()), json.loads((made.checkpoint / "config.json").read_text())
    resolved, rope = sglang["resolved"], resolve(config)
    for flag in ("norm_before_fc", "fc_norm", "norm_output"):
        assert resolved[flag] == trained[flag]
    assert resolved["num_aux_hidden_states"] == len(made.capture.boundaries)
    assert resolved["load_lm_head_from_target"] is False and resolved["tied"] is False
    assert resolved["rms_norm_eps"] == pytest.approx(config["rms_norm_eps"])
    assert (resolved["rope_theta"], resolved["head_dim"]) == (rope.theta, rope.head_dim)
    angles = torch.outer(torch.arange(4.0), rope.theta ** (-torch.arange(0, rope.head_dim, 2) / rope.head_dim))
    angles = angles / rope.scaling.get("factor", 1.0)
    assert resolved["rope_cos_sin"] == pytest.approx(torch.cat([angles.cos(), angles.sin()], -1).flatten().tolist(), abs=1e-6)


def test_draft_ids_become_the_target_ids_that_were_trained(served: tuple[Made, Path, dict[str, Any]]) -> None:
    made, _, sglang = served
    weights = load_file(made.checkpoint / "model.safetensors")
    marked = weights["t2d"].nonzero().flatten().tolist() if "t2d" in weights else None
    assert sglang["target_ids"] == marked


def test_what_the_contract_calls_unknown_or_missing_sglang_drops_or_leaves_random(tiny_target: Path, tmp_path: Path) -> None:
    """The proof that the contract is needed: SGLang says nothing."""
    folder = make(tmp_path, tiny_target).export(tmp_path / "home").folder
    (tmp_path / "odd").mkdir()
    weights = load_file(folder / "model.safetensors")
    weights["decoder.0.hidden_norm.weight"] = weights.pop("midlayer.hidden_norm.weight")
    del weights["lm_head.weight"]
    save_file(weights, tmp_path / "odd" / "model.safetensors")
    (tmp_path / "odd" / "config.json").write_text((folder / "config.json").read_text())
    sglang = ask({"load": str(tmp_path / "odd")})
    assert "decoder.0.hidden_norm.weight" in sglang["dropped"]
    assert set(sglang["unloaded"]) == {"model.embed_tokens.weight", "model.layers.0.hidden_norm.weight", "lm_head.weight"}


@pytest.mark.parametrize(
    "config",
    [
        {"rope_theta": 5e5},
        {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}},
        {"rope_parameters": {"rope_type": "default"}, "rope_theta": 5e5},
        {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 4.0}},
        {"rope_scaling": {"rope_type": "default", "rope_theta": 2e4}, "rope_parameters": {"rope_type": "default", "rope_theta": 3e4}},
        {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}, "rope_theta": 5e5},
        {},
    ],
    ids=str,
)
def test_rope_is_resolved_as_sglang_does(config: dict[str, Any], tiny_target: Path, tmp_path: Path) -> None:
    folder = make(tmp_path, tiny_target).export(tmp_path / "home").folder
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    written = json.loads((folder / "config.json").read_text())
    del written["rope_parameters"]
    (tmp_path / "odd" / "config.json").write_text(json.dumps({**written, **config}))
    resolved, rope = ask({"load": str(tmp_path / "odd")})["resolved"], resolve({**written, **config})
    kinds = {"default": "RotaryEmbedding", "linear": "LinearScalingRotaryEmbedding", "llama3": "Llama3RotaryEmbedding"}
    assert (resolved["rope_theta"], resolved["rope_class"]) == (rope.theta, kinds[rope.type])
