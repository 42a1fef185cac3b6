"""Mutants that export, or the static contract of what it wrote, has to refuse with the right kind (`faults.md`).

TRAINED are planted into what training hands over: export stops. SERVED are planted into a finished folder, as somebody
who edits it would: `check_served_form` says so. With `alone` it has to be seen without the wiring record too.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tasks.config import ExportConfig
from tasks.products import StepCounts
from tasks.verdict import BadInput, Outcome, ProofFailed
from tasks.wiring.checkpoint_contract import check_served_form
from tasks.wiring.kinds import Kind
from tasks.wiring.record import WiringRecord
from tests.export.made import Made, make
from tests.faults.conftest import Score

IDS = "eagle_aux_hidden_state_layer_ids"
Change = Callable[[Any], Any]


def put(**values: Any) -> Change:
    """Set keys of a mapping."""
    return lambda mapping: mapping.update(values)


def layer(**values: Any) -> Change:
    return lambda config: config["transformer_layer_config"].update(values)


def eagle(**values: Any) -> Change:
    return lambda config: config["eagle_config"].update(values)


def drop(name: str) -> Change:
    """Remove one key of a mapping."""
    return lambda mapping: {key: value for key, value in mapping.items() if key != name}


def both(first: Change, second: Change) -> Change:
    """One change after the other."""

    def change(value: Any) -> Any:
        value = first(value) or value
        return second(value) or value

    return change


def change(name: str, how: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    return lambda tensors: tensors.update({name: how(tensors[name]).contiguous()})


def rename(old: str, new: str) -> Change:
    return lambda tensors: {name.replace(old, new): tensor for name, tensor in tensors.items()}


def record(**parts: Any) -> Change:
    """Replace fields inside of parts of the wiring record: `features={"boundaries": […]}`."""
    return lambda r: r.model_copy(update={part: getattr(r, part).model_copy(update=values) for part, values in parts.items()})


def boundaries(*new: int) -> dict[str, Change]:
    """Trained on these throughout: config and record agree."""
    return {"config": put(**{IDS: list(new)}), "record": record(features={"boundaries": list(new)})}


@dataclass(frozen=True)
class Mutant:
    name: str
    kind: Kind
    config: Change | None = None
    tensors: Change | None = None
    record: Change | None = None
    everywhere: bool = False
    """The capture's product and record are changed alike."""
    alone: bool = True
    """Seen without the wiring record (of the folder) as well."""


def random_like(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).bfloat16()


TRAINED = [
    Mutant("K1 the last boundary", Kind.LAYER_BOUNDARIES, **boundaries(0, 2, 6), everywhere=True),
    Mutant("K1 unsorted", Kind.LAYER_BOUNDARIES, **boundaries(4, 2, 0), everywhere=True),
    Mutant("K1 one twice", Kind.LAYER_BOUNDARIES, **boundaries(2, 2, 4), everywhere=True),
    Mutant("K1 below the embedding", Kind.LAYER_BOUNDARIES, **boundaries(-1, 2, 4), everywhere=True),
    Mutant("K1 one feature only", Kind.LAYER_BOUNDARIES, **boundaries(3), everywhere=True),
    Mutant("K1 more ids than fc takes", Kind.LAYER_BOUNDARIES, **boundaries(0, 2, 3, 4), everywhere=True),
    Mutant("K1 fewer ids than fc takes", Kind.LAYER_BOUNDARIES, **boundaries(0, 4), everywhere=True),
    Mutant("K1 the checkpoint lists others than the record", Kind.LAYER_BOUNDARIES, config=put(**{IDS: [1, 3, 5]})),
    Mutant("K1 the record says others than the capture", Kind.LAYER_BOUNDARIES, **boundaries(1, 3, 5)),
    Mutant("K1 no ids", Kind.LAYER_BOUNDARIES, config=put(**{IDS: None})),
    Mutant("K2 norm_before_residual", Kind.ARCHITECTURE_FLAGS, config=put(norm_before_residual=True)),
    Mutant("K2 attention_bias", Kind.ARCHITECTURE_FLAGS, config=layer(attention_bias=True)),
    Mutant("K2 mlp_bias", Kind.ARCHITECTURE_FLAGS, config=layer(mlp_bias=True)),
    Mutant("K2 another activation", Kind.ARCHITECTURE_FLAGS, config=layer(hidden_act="gelu")),
    Mutant("K2 a qwen3 layer", Kind.ARCHITECTURE_FLAGS, config=layer(model_type="qwen3")),
    Mutant("K2 two layers", Kind.ARCHITECTURE_FLAGS, config=layer(num_hidden_layers=2)),
    Mutant("K2 no draft_vocab_size", Kind.ARCHITECTURE_FLAGS, config=drop("draft_vocab_size")),
    Mutant("K2 norm_output flipped", Kind.ARCHITECTURE_FLAGS, config=put(norm_output=True)),
    Mutant("K2 norm_before_fc flipped", Kind.ARCHITECTURE_FLAGS, config=put(norm_before_fc=True)),
    Mutant("K2 fc_norm flipped", Kind.ARCHITECTURE_FLAGS, config=put(fc_norm=True)),
    Mutant("K2 another eps", Kind.ARCHITECTURE_FLAGS, config=layer(rms_norm_eps=1e-6)),
    Mutant("K2 another target's hidden size", Kind.ARCHITECTURE_FLAGS, config=put(target_hidden_size=128)),
    Mutant("K3 no head", Kind.TENSORS, tensors=drop("lm_head.weight")),
    Mutant("K3 no fc", Kind.TENSORS, tensors=drop("fc.weight")),
    Mutant("K3 a tensor nobody knows", Kind.TENSORS, tensors=put(extra=torch.ones(3))),
    Mutant("K3 a second layer", Kind.TENSORS, tensors=put(**{"layers.1.input_layernorm.weight": random_like((64,))})),
    Mutant("K3 a bias", Kind.TENSORS, tensors=put(**{"layers.0.self_attn.q_proj.bias": random_like((64,))})),
    Mutant("K3 another prefix", Kind.TENSORS, tensors=rename("layers.0.", "decoder.0.")),
    Mutant("K3 a head of another width", Kind.TENSORS, tensors=change("lm_head.weight", lambda t: t[:-1])),
    Mutant("K3 a transposed projection", Kind.TENSORS, tensors=change("layers.0.mlp.down_proj.weight", lambda t: t.T)),
    Mutant("K3 values that are no numbers", Kind.TENSORS, tensors=change("norm.weight", lambda t: t * torch.nan)),
    Mutant("K3 an embedding that was trained", Kind.TENSORS, tensors=change("embed_tokens.weight", lambda t: t + 1)),
    Mutant("K4 ids for offsets", Kind.VOCAB_MAP, tensors=change("d2t", lambda t: t + torch.arange(len(t)))),
    Mutant("K4 all zero", Kind.VOCAB_MAP, tensors=change("d2t", torch.zeros_like)),
    Mutant("K4 another map", Kind.VOCAB_MAP, tensors=lambda t: t.update(d2t=t["d2t"] - t["d2t"][0], t2d=t["t2d"].roll(-int(t["d2t"][0])))),
    Mutant("K4 shuffled", Kind.VOCAB_MAP, tensors=change("d2t", lambda t: t.flip(0))),
    Mutant("K4 beyond the vocabulary", Kind.VOCAB_MAP, tensors=change("d2t", lambda t: t + 96)),
    Mutant("K4 no d2t", Kind.VOCAB_MAP, tensors=drop("d2t")),
    Mutant("K4 t2d of another map", Kind.VOCAB_MAP, tensors=change("t2d", lambda t: t.roll(1))),
    Mutant("K4 floating-point offsets", Kind.VOCAB_MAP, tensors=change("d2t", lambda t: t.float())),
    Mutant("K8 another theta", Kind.ROPE, config=layer(rope_parameters={"rope_type": "default", "rope_theta": 5e5})),
    Mutant("K8 a factor", Kind.ROPE, config=layer(rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0})),
    Mutant(
        "K8 a kind that is not supported", Kind.ROPE, config=layer(rope_parameters={"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0})
    ),
    Mutant("K9 fewer positions", Kind.CONTEXT_LENGTH, config=layer(max_position_embeddings=128)),
    Mutant("K11 weights that bfloat16 rounds", Kind.DTYPE_QUANTISATION, tensors=change("fc.weight", lambda t: t.float() * 1.001)),
    Mutant("K12 the record without a draft", Kind.SILENT_LOSS, record=lambda r: r.model_copy(update={"draft": None})),
    Mutant("K12 fewer steps counted than trained", Kind.SILENT_LOSS, record=record(draft={"ttt_steps": 5})),
    Mutant("K6 features of other data", Kind.FEATURES, record=lambda r: r.model_copy(update={"data_sha256": "9" * 64})),
    Mutant("K6 another target's weights", Kind.FEATURES, record=record(target={"weights": "9" * 64}), everywhere=True),
    Mutant("K7 another chat template", Kind.LOSS_MASK, record=record(target={"chat_template": "9" * 64}), everywhere=True),
]

SERVED = [
    Mutant("K1 every layer +1", Kind.LAYER_BOUNDARIES, config=eagle(**{IDS: [0, 2, 4]}), alone=False),
    Mutant("K1 every layer -1", Kind.LAYER_BOUNDARIES, config=eagle(**{IDS: [-2, 0, 2]})),
    Mutant("K1 the last boundary", Kind.LAYER_BOUNDARIES, config=eagle(**{IDS: [-1, 1, 5]})),
    Mutant("K1 unsorted", Kind.LAYER_BOUNDARIES, config=eagle(**{IDS: [3, 1, -1]})),
    Mutant("K1 one twice", Kind.LAYER_BOUNDARIES, config=eagle(**{IDS: [1, 1, 3]})),
    Mutant("K1 one id too many", Kind.LAYER_BOUNDARIES, config=eagle(**{IDS: [-1, 1, 2, 3]})),
    Mutant(
        "K1 one id too many, and counted",
        Kind.LAYER_BOUNDARIES,
        config=both(eagle(**{IDS: [-1, 1, 2, 3]}), put(num_aux_hidden_states=4)),
    ),
    Mutant("K1 the ids at the top only", Kind.LAYER_BOUNDARIES, config=lambda c: c.update({IDS: c["eagle_config"].pop(IDS)})),
    Mutant("K1 no ids", Kind.LAYER_BOUNDARIES, config=lambda c: {**c, "eagle_config": drop(IDS)(c["eagle_config"])}),
    Mutant("K1 ids that are no numbers", Kind.LAYER_BOUNDARIES, config=eagle(**{IDS: ["a", "b", "c"]})),
    Mutant("K2 norm_output flipped", Kind.ARCHITECTURE_FLAGS, config=put(norm_output=True), alone=False),
    Mutant(
        "K2 norm_output in eagle_config",
        Kind.ARCHITECTURE_FLAGS,
        config=both(drop("norm_output"), eagle(norm_output=True)),
    ),
    Mutant("K2 norm_before_fc flipped", Kind.ARCHITECTURE_FLAGS, config=eagle(norm_before_fc=True)),
    Mutant("K2 fc_norm flipped", Kind.ARCHITECTURE_FLAGS, config=put(fc_norm=True)),
    Mutant("K2 norm_before_residual", Kind.ARCHITECTURE_FLAGS, config=put(norm_before_residual=True)),
    Mutant("K2 a bias for fc", Kind.ARCHITECTURE_FLAGS, config=put(bias=True)),
    Mutant("K2 use_aux_hidden_state off", Kind.ARCHITECTURE_FLAGS, config=eagle(use_aux_hidden_state=False)),
    Mutant("K2 no draft_vocab_size", Kind.ARCHITECTURE_FLAGS, config=drop("draft_vocab_size")),
    Mutant("K2 draft_vocab_size null", Kind.ARCHITECTURE_FLAGS, config=put(draft_vocab_size=None)),
    Mutant("K2 no hidden_size", Kind.ARCHITECTURE_FLAGS, config=drop("hidden_size")),
    Mutant("K3 tied head with a reduced vocabulary", Kind.TENSORS, config=put(tie_word_embeddings=True)),
    Mutant("K3 no head", Kind.TENSORS, tensors=drop("lm_head.weight")),
    Mutant("K3 another prefix", Kind.TENSORS, tensors=rename("midlayer.", "decoder.0.")),
    Mutant("K3 swapped widths", Kind.TENSORS, tensors=change("fc.weight", lambda t: t.T)),
    Mutant("K3 infinite", Kind.TENSORS, tensors=change("fc.weight", lambda t: t / 0)),
    Mutant("K4 ids for offsets", Kind.VOCAB_MAP, tensors=change("d2t", lambda t: t + torch.arange(len(t)))),
    Mutant(
        "K4 ids for offsets, no t2d",
        Kind.VOCAB_MAP,
        tensors=both(change("d2t", lambda t: t + torch.arange(len(t))), drop("t2d")),
    ),
    Mutant("K4 zeros, no t2d", Kind.VOCAB_MAP, tensors=both(change("d2t", torch.zeros_like), drop("t2d")), alone=False),
    Mutant("K4 no d2t", Kind.VOCAB_MAP, tensors=drop("d2t")),
    Mutant("K4 another target's vocabulary", Kind.VOCAB_MAP, config=put(vocab_size=128)),
    Mutant("K8 another theta", Kind.ROPE, config=lambda c: c["rope_parameters"].update(rope_theta=5e5), alone=False),
    Mutant("K8 theta as a text", Kind.ROPE, config=lambda c: c["rope_parameters"].update(rope_theta="1e4")),
    Mutant("K9 fewer positions than served", Kind.CONTEXT_LENGTH, config=put(max_position_embeddings=64)),
    Mutant("K11 dtype misnamed", Kind.DTYPE_QUANTISATION, config=put(dtype="float32")),
    Mutant("K11 mixed dtypes", Kind.DTYPE_QUANTISATION, tensors=change("norm.weight", lambda t: t.float())),
    Mutant("K11 quantised", Kind.DTYPE_QUANTISATION, config=put(quantization_config={"quant_method": "awq"})),
]

HEALTHY: dict[str, dict[str, Change]] = {
    "as exported": {},
    "layers.0 for midlayer": {"tensors": rename("midlayer.", "layers.0.")},
    "with the prefix model.": {"tensors": rename("midlayer.", "model.layers.0.")},
    "without t2d": {"tensors": drop("t2d")},
    "with the target's embedding": {"tensors": lambda t: t.update({"embed_tokens.weight": random_like((96, 64))})},
    "int32 offsets": {"tensors": change("d2t", lambda t: t.int())},
    "norm_before_fc at the top": {"config": lambda c: c.update(norm_before_fc=c["eagle_config"].pop("norm_before_fc"))},
    "norm_output off, in eagle_config": {"config": both(drop("norm_output"), eagle(norm_output=False))},
    "torch_dtype for dtype": {"config": lambda c: c.update(torch_dtype=c.pop("dtype"))},
    "rope_theta for rope_parameters": {"config": lambda c: c.update(rope_theta=c.pop("rope_parameters")["rope_theta"])},
    "no count of features": {"config": drop("num_aux_hidden_states")},
    "in float32": {
        "tensors": lambda t: {n: v.float() if v.is_floating_point() else v for n, v in t.items()},
        "config": put(dtype="float32"),
    },
}


def planted(folder: Path, target: Path, mutant: Mutant) -> tuple[Made, dict[str, Any]]:
    made = make(folder, target).edited(mutant.config, mutant.tensors, mutant.record)
    if not mutant.everywhere or mutant.record is None:
        return made, {}
    changed = mutant.record(WiringRecord.read(made.capture.folder))
    changed.write(made.capture.folder)
    return made, {"capture": made.capture.model_copy(update={"boundaries": changed.features.boundaries})}


@pytest.mark.parametrize("mutant", TRAINED, ids=lambda m: m.name)
def test_export_refuses_what_cannot_be_served_as_trained(mutant: Mutant, tiny_target: Path, tmp_path: Path, score: Score) -> None:
    score.mutant(f"{mutant.kind}: {mutant.name} (trained)", False, False, "stopped")
    made, changed = planted(tmp_path, tiny_target, mutant)
    with pytest.raises(ProofFailed) as raised:
        made.export(tmp_path / "home", **changed)
    verdict = raised.value.verdict
    score.mutant(f"{mutant.kind}: {mutant.name} (trained)", True, verdict.kind == mutant.kind, str(verdict.kind))
    assert (raised.value.verdict.stage, raised.value.verdict.kind) == ("export", mutant.kind), raised.value
    assert not list((tmp_path / "home" / "cache" / "export").glob("*/product.json"))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory, tiny_target: Path) -> Path:
    folder = tmp_path_factory.mktemp("served")
    return make(folder, tiny_target).export(folder / "home").folder


def tampered(folder: Path, source: Path, *, config: Change | None = None, tensors: Change | None = None, record: bool) -> Path:
    folder.mkdir()
    said, weights = json.loads((source / "config.json").read_text()), load_file(source / "model.safetensors")
    (folder / "config.json").write_text(json.dumps((config and config(said)) or said))
    save_file((tensors and tensors(weights)) or weights, folder / "model.safetensors")
    if record:
        (folder / "wiring.json").write_text((source / "wiring.json").read_text())
    return folder


def failures(folder: Path, target: Path) -> list[tuple[Any, str]]:
    checks = check_served_form(folder, json.loads((target / "config.json").read_text()), context_length=512)
    return [(check.kind, check.message) for check in checks if check.verdict is Outcome.FAIL]


@pytest.mark.parametrize("with_record", [True, False], ids=["record", "alone"])
@pytest.mark.parametrize("mutant", SERVED, ids=lambda m: m.name)
def test_a_tampered_folder_is_named(
    mutant: Mutant, with_record: bool, exported: Path, tiny_target: Path, tmp_path: Path, score: Score
) -> None:
    found = failures(tampered(tmp_path / "odd", exported, config=mutant.config, tensors=mutant.tensors, record=with_record), tiny_target)
    if with_record or mutant.alone:
        name = f"{mutant.kind}: {mutant.name} (served, {'record' if with_record else 'alone'})"
        score.mutant(name, bool(found), bool(found) and found[0][0] == mutant.kind, str(found[:1]))
        assert found and found[0][0] == mutant.kind, found
    else:
        assert found == []  # valid by itself: only the record knows better


@pytest.mark.parametrize("with_record", [True, False], ids=["record", "alone"])
@pytest.mark.parametrize("name", HEALTHY)
def test_no_false_alarm(name: str, with_record: bool, exported: Path, tiny_target: Path, tmp_path: Path, score: Score) -> None:
    found = failures(tampered(tmp_path / "odd", exported, **HEALTHY[name], record=with_record), tiny_target)
    score.healthy(f"{name} (served, {'record' if with_record else 'alone'})", not found, str(found))
    assert not found


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda f: (f / "model.safetensors").write_bytes((f / "model.safetensors").read_bytes()[:-50]), "no whole safetensors"),
        (lambda f: (f / "model.safetensors").unlink(), "no whole safetensors"),
        (lambda f: (f / "config.json").write_text("{"), "no JSON"),
        (lambda f: (f / "config.json").write_text('["a"]'), "list"),
        (lambda f: (f / "config.json").write_text('{"architectures": ["Eagle3DeepseekV2ForCausalLM"]}'), "MLA drafter"),
        (lambda f: (f / "wiring.json").write_text("{}"), "wiring record"),
    ],
)
def test_what_cannot_be_read_is_refused(
    damage: Callable[[Path], Any], says: str, exported: Path, tiny_target: Path, tmp_path: Path
) -> None:
    folder = tampered(tmp_path / "odd", exported, record=True)
    damage(folder)
    with pytest.raises(BadInput, match=says):
        failures(folder, tiny_target)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"logits_rows": []}, "no logits"),
        ({"steps": [StepCounts(right=11, positions=10)] * 3}, "11 right of 10"),
        ({"steps": [StepCounts(right=0, positions=0)] * 3}, "0 right of 0"),
        ({"steps": [StepCounts(right=right, positions=10) for right in (3, 4, 3)]}, "step 1 above step 0"),
    ],
)
def test_counters_are_gates(changed: dict[str, Any], says: str, tiny_target: Path, tmp_path: Path) -> None:
    made = make(tmp_path, tiny_target)
    with pytest.raises(ProofFailed, match=says) as raised:
        made.export(tmp_path / "home", train=made.train.model_copy(update=changed))
    assert raised.value.verdict.kind == "silent-loss"


def test_float32_holds_what_bfloat16_rounds(tiny_target: Path, tmp_path: Path) -> None:
    made = make(tmp_path, tiny_target).edited(
        tensors=lambda t: {n: v.float() * 1.001 if v.is_floating_point() and n != "embed_tokens.weight" else v for n, v in t.items()}
    )
    made.export(tmp_path / "home", ExportConfig(dtype="float32"))
