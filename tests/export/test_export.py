"""The exported folder: what is in it, that it is the same each time, and that nothing changed on the way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tasks.config import ExportConfig
from tasks.store import sha256_file
from tasks.verdict import BadInput, Outcome, ProofFailed
from tasks.wiring.checkpoint_contract import canonical, check_served_form
from tasks.wiring.probes import PADDING, read_probes
from tasks.wiring.record import WiringRecord
from tasks.wiring.weights import hashes
from tests.export.made import ROWS, STEPS, TOKENS, Made, make

FILES = {"config.json", "model.safetensors", "wiring.json", "probes.safetensors"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, tiny_target: Path) -> Made:
    return make(tmp_path_factory.mktemp("made"), tiny_target)


@pytest.fixture(scope="module")
def exported(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made.export(tmp_path_factory.mktemp("home")).folder


def test_the_folder_holds_four_files_that_pass_the_contract(made: Made, exported: Path) -> None:
    assert {path.name for path in exported.iterdir()} >= FILES
    checks = check_served_form(exported, json.loads((made.target.folder / "config.json").read_text()), context_length=512)
    assert [check.name for check in checks if check.verdict is not Outcome.PASS] == []


def test_the_same_inputs_give_the_same_bytes(made: Made, exported: Path, tmp_path: Path) -> None:
    again = made.export(tmp_path).folder
    assert again != exported
    assert {name: sha256_file(again / name) for name in FILES} == {name: sha256_file(exported / name) for name in FILES}


def test_it_is_found_in_the_store(made: Made, tmp_path: Path) -> None:
    first = made.export(tmp_path)
    assert made.export(tmp_path) == first
    assert made.export(tmp_path, ExportConfig(dtype="float32")).sha256 != first.sha256


def test_no_weight_is_changed_and_the_embedding_is_left_out(made: Made, exported: Path) -> None:
    before, after = load_file(made.checkpoint / "model.safetensors"), load_file(exported / "model.safetensors")
    assert set(after) == {name.replace("layers.0.", "midlayer.") for name in before} - {"embed_tokens.weight"}
    for name, tensor in before.items():
        if name != "embed_tokens.weight":
            assert torch.equal(after[name.replace("layers.0.", "midlayer.")], tensor)


def test_the_record_knows_each_weight(exported: Path) -> None:
    weights = load_file(exported / "model.safetensors")
    recorded = WiringRecord.read(exported).weights
    assert recorded == hashes(weights) and set(recorded) == {canonical(name) for name in weights} - {"d2t", "t2d"}
    wider = {canonical(name): tensor.float() for name, tensor in weights.items()}
    assert hashes(wider) == recorded
    changed = {**weights, "norm.weight": weights["norm.weight"].flip(0)}
    assert {name for name, value in hashes(changed).items() if recorded[name] != value} == {"norm.weight"}


def test_every_key_is_explicit(exported: Path) -> None:
    config = json.loads((exported / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert config["eagle_config"] == {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": [-1, 1, 3], "norm_before_fc": False}
    assert config["rope_parameters"] == {"rope_type": "default", "rope_theta": 10000.0}
    assert (config["draft_vocab_size"], config["tie_word_embeddings"], config["dtype"]) == (32, False, "bfloat16")
    for key in ("fc_norm", "norm_output", "head_dim", "rms_norm_eps", "hidden_act", "max_position_embeddings", "num_aux_hidden_states"):
        assert config[key] is not None


def test_the_record_is_carried(made: Made, exported: Path) -> None:
    carried, trained = WiringRecord.read(exported), WiringRecord.read(made.checkpoint)
    added: dict[str, Any] = {"versions": {}, "weights": None}
    assert carried.model_copy(update=added) == trained.model_copy(update=added)
    assert carried.versions["safetensors"]


class TestProbes:
    def test_they_are_what_the_trainer_computed(self, made: Made, exported: Path) -> None:
        probes = read_probes(exported)
        assert probes is not None and len(probes) == len(ROWS)
        for row, probe in zip(ROWS, probes, strict=True):
            own = load_file(made.train.folder / "trainer_logits" / f"{row}.safetensors")
            assert torch.equal(probe.token_ids_S, own["token_ids"])
            assert probe.features_SnH.dtype == torch.bfloat16 and torch.equal(probe.features_SnH, own["features"])
            assert torch.equal(probe.logits_KPV, own["logits"][:, probe.positions_P])
            assert torch.equal(probe.positions_P, torch.arange(TOKENS - 1 - STEPS))
            for k in range(STEPS):
                assert torch.equal(probe.argmax_KS[k, : TOKENS - 2 - k], own["logits"][k, : TOKENS - 2 - k].argmax(-1))
                assert bool((probe.argmax_KS[k, TOKENS - 2 - k :] == PADDING).all())

    def test_a_cut_row_has_the_logits_of_the_whole_one(self, made: Made, tmp_path: Path) -> None:
        """The trainer's logits at an index do not depend on later tokens: its own forward on the cut row says so too."""
        probes = read_probes(made.export(tmp_path, ExportConfig(probes=1, probe_tokens=10)).folder)
        assert probes is not None and len(probes) == 1 and len(probes[0].token_ids_S) == 10
        own = load_file(made.train.folder / "trainer_logits" / f"{ROWS[0]}.safetensors")
        assert torch.equal(probes[0].logits_KPV, own["logits"][:, : 10 - 1 - STEPS])

    def test_logits_are_thinned_out_to_the_budget_and_keep_every_step(self, made: Made, tmp_path: Path, monkeypatch: Any) -> None:
        monkeypatch.setattr("tasks.export.golden._LOGITS_BYTES", len(ROWS) * 5 * 4 * STEPS * 32)
        probes = read_probes(made.export(tmp_path).folder)
        assert probes is not None
        for probe in probes:
            assert probe.logits_KPV.shape == (STEPS, len(probe.positions_P), 32) and 3 <= len(probe.positions_P) <= 5
            assert len(set(probe.positions_P.diff().tolist())) == 1

    @pytest.mark.parametrize("damage", ["cut", "renamed", "nan"])
    def test_damaged_ones_are_refused(self, exported: Path, tmp_path: Path, damage: str) -> None:
        from safetensors.torch import save_file

        path = tmp_path / "probes.safetensors"
        tensors = load_file(exported / "probes.safetensors")
        if damage == "nan":
            tensors["0.logits_KPV"][0, 0, 0] = torch.nan
        if damage == "renamed":
            tensors["9.token_ids_S"] = tensors.pop("0.token_ids_S")
        save_file(tensors, path, metadata={"draftproof": json.dumps({"format": "draftproof-probes-1", "rows": len(ROWS)})})
        if damage == "cut":
            path.write_bytes(path.read_bytes()[:-100])
        with pytest.raises(BadInput, match="golden probes"):
            read_probes(tmp_path)

    def test_a_folder_without_any(self, tmp_path: Path) -> None:
        assert read_probes(tmp_path) is None


@pytest.mark.parametrize(
    "variant",
    [
        {"norm_before_fc": True},
        {"fc_norm": True, "norm_output": True},
        {"boundaries": (1, 3)},
        {"boundaries": (0, 1, 2, 4, 5)},
        {"draft_size": 96, "identity": True},
        {"layer": {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}},
        {"layer": {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}},
        {"layer": {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 24}},
        {"seed": 7},
    ],
    ids=str,
)
def test_every_variant_that_sglang_can_serve_is_exported(variant: dict[str, Any], tiny_target: Path, tmp_path: Path) -> None:
    made = make(tmp_path, tiny_target, **variant)
    folder = made.export(tmp_path / "home").folder
    assert not [c for c in check_served_form(folder, json.loads((tiny_target / "config.json").read_text())) if c.verdict is Outcome.FAIL]


def test_float32_holds_the_trained_values(made: Made, tmp_path: Path) -> None:
    folder = made.export(tmp_path, ExportConfig(dtype="float32")).folder
    after = load_file(folder / "model.safetensors")
    assert after["fc.weight"].dtype == torch.float32
    assert torch.equal(after["fc.weight"].bfloat16(), load_file(made.checkpoint / "model.safetensors")["fc.weight"])


def test_an_unsupported_family_is_refused_by_name(made: Made, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="gemma3"):
        made.export(tmp_path, target_family="gemma3")


def test_another_family_than_the_targets_is_refused(made: Made, tmp_path: Path) -> None:
    with pytest.raises(ProofFailed) as raised:
        made.export(tmp_path, target_family="deepseek_v3")
    assert raised.value.verdict.kind == "layer-boundaries"
