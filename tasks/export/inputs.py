"""What training and capture handed over, read and held against each other before anything is written."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from tasks.products import CaptureProduct, TargetProduct, TrainProduct
from tasks.verdict import BadInput, Check
from tasks.wiring.families import family_of_config
from tasks.wiring.kinds import Kind
from tasks.wiring.record import TargetPrint, WiringRecord
from tasks.wiring.served_config import broken, passed

CHECKPOINT = "checkpoint"
# What another value of each part of the target's print does to a drafter.
_PRINT_KINDS = {
    "config": Kind.ARCHITECTURE_FLAGS,
    "weights": Kind.FEATURES,
    "tokenizer": Kind.LOSS_MASK,
    "chat_template": Kind.LOSS_MASK,
    "family": Kind.LAYER_BOUNDARIES,
    "num_layers": Kind.LAYER_BOUNDARIES,
    "hidden_size": Kind.ARCHITECTURE_FLAGS,
    "vocab_size": Kind.VOCAB_MAP,
}
_ROWS_AT_ONCE = 8192


@dataclass(frozen=True)
class Trained:
    """A speculators 0.9.0 checkpoint, as it lies on disk, with the record that training wrote beside it."""

    config: dict[str, Any]
    tensors: dict[str, torch.Tensor]
    record: WiringRecord


def read_trained(train: TrainProduct) -> Trained:
    """Raises BadInput when the checkpoint or the record cannot be read, or the checkpoint is no EAGLE-3 one."""
    folder = train.folder / CHECKPOINT
    path = folder / "config.json"
    config = read_json(path)
    if config.get("speculators_model_type") != "eagle3":
        raise BadInput(
            str(path), found=f"speculators_model_type {config.get('speculators_model_type')!r}", expected="'eagle3'", do="Train again."
        )
    try:
        tensors = load_file(folder / "model.safetensors")
    except (OSError, SafetensorError) as error:
        raise BadInput(str(folder / "model.safetensors"), found=error, expected="safetensors", do="Train again.") from error
    return Trained(config, tensors, WiringRecord.read(folder))


def read_json(path: Path) -> dict[str, Any]:
    """Raises BadInput for what is no JSON object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(str(path), found=f"no JSON ({error})", expected="a config", do="Run the stage before again.") from error
    if not isinstance(value, dict):
        raise BadInput(str(path), found=type(value).__name__, expected="a JSON object", do="Run the stage before again.")
    return value


def check_inputs(
    trained: Trained, *, train: TrainProduct, capture: CaptureProduct, target: TargetProduct, target_family: str
) -> list[Check]:
    """Where training's record contradicts the capture, the target, or training's own checkpoint and counts."""
    found = [
        *_against_capture(trained.record, WiringRecord.read(capture.folder), capture),
        *_against_target(trained.record.target, target.print, target, target_family),
        *_against_checkpoint(trained),
        *_counts(train, trained.record),
        *_embedding(trained.tensors.get("embed_tokens.weight"), target),
    ]
    return found or [passed("inputs", "the records of capture and training, the target, the checkpoint and its counts agree")]


def _against_capture(trained: WiringRecord, captured: WiringRecord, capture: CaptureProduct) -> Iterator[Check]:
    for part, boundaries in (("the capture's record", captured.features.boundaries), ("the capture", capture.boundaries)):
        if boundaries != trained.features.boundaries:
            message = f"Training's record says boundaries {trained.features.boundaries}, {part} {boundaries}. Train again on this capture."
            yield broken(
                "inputs: boundaries", Kind.LAYER_BOUNDARIES, message, {"trained": trained.features.boundaries, "captured": boundaries}
            )
    if captured.features != trained.features or captured.data_sha256 != trained.data_sha256 or captured.target != trained.target:
        message = "Features, data or target of training's record are not those of the capture. Train again on this capture."
        yield broken("inputs: capture", Kind.FEATURES, message)


def _against_target(trained: TargetPrint, now: TargetPrint, target: TargetProduct, target_family: str) -> Iterator[Check]:
    for part, kind in _PRINT_KINDS.items():
        before, after = getattr(trained, part), getattr(now, part)
        if before != after:
            message = f"The target's {part} is {after}, the drafter was trained with {before}. Capture and train again for {target.name}."
            yield broken(f"inputs: target {part}", kind, message, {"trained": before, "target": after})
    named = family_of_config(read_json(target.folder / "config.json"), str(target.folder / "config.json"))
    if not any(target_family in types for types in named.architectures.values()):
        message = f"The target is asked to be served as {target_family!r}, its config.json says {named.name}. Ids differ by family."
        yield broken("inputs: family", Kind.LAYER_BOUNDARIES, message)


def _against_checkpoint(trained: Trained) -> Iterator[Check]:
    said = trained.config.get("eagle_aux_hidden_state_layer_ids")
    if said != trained.record.features.boundaries:
        message = f"The checkpoint lists boundaries {said}, the record {trained.record.features.boundaries}. Train again."
        yield broken("inputs: checkpoint boundaries", Kind.LAYER_BOUNDARIES, message, {"checkpoint": said})


def _counts(train: TrainProduct, record: WiringRecord) -> Iterator[Check]:
    """Counters are gates: nothing measured, or more right than asked, proves nothing."""
    if not train.logits_rows:
        yield broken("inputs: logits", Kind.SILENT_LOSS, "Training left no logits of its own: nothing can be proved. Train again.")
    wrong = [f"step {k}: {s.right} right of {s.positions}" for k, s in enumerate(train.steps) if not 0 <= s.right <= s.positions > 0]
    rising = [
        f"step {k + 1} above step {k}" for k, (a, b) in enumerate(zip(train.steps, train.steps[1:], strict=False)) if b.right > a.right
    ]
    if record.draft is not None and len(train.steps) != record.draft.ttt_steps:
        wrong.append(f"{len(train.steps)} steps counted, {record.draft.ttt_steps} trained")
    if wrong or rising:
        message = f"Training's counts make no sense: {'; '.join([*wrong, *rising])}. Train again."
        yield broken("inputs: counts", Kind.SILENT_LOSS, message, {"wrong": wrong, "rising": rising})


def _embedding(stored_VH: torch.Tensor | None, target: TargetProduct) -> Iterator[Check]:
    """SGLang replaces a drafter's embedding by the target's, so a trained one would be served as another in silence."""
    if stored_VH is None:
        return
    file, name = target_embedding(target.folder)
    with safe_open(file, framework="pt") as opened:
        own = opened.get_slice(name)
        same = tuple(own.get_shape()) == tuple(stored_VH.shape) and all(
            torch.equal(own[start : start + _ROWS_AT_ONCE].to(stored_VH.dtype), stored_VH[start : start + _ROWS_AT_ONCE])
            for start in range(0, len(stored_VH), _ROWS_AT_ONCE)
        )
    if not same:
        message = "The drafter's embedding is not the target's, by which SGLang would replace it in silence. Train with it frozen."
        yield broken("inputs: embedding", Kind.TENSORS, message, {"shape": list(stored_VH.shape)})


def target_embedding(folder: Path) -> tuple[Path, str]:
    """File and name of the target's input embedding. Raises BadInput when its folder has none in safetensors."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        weight_map: Mapping[str, str] = read_json(index).get("weight_map", {})
        places = {name: folder / file for name, file in weight_map.items()}
    else:
        try:
            with safe_open(folder / "model.safetensors", framework="pt") as opened:
                places = dict.fromkeys(opened.keys(), folder / "model.safetensors")
        except (OSError, SafetensorError) as error:
            raise BadInput(str(folder), found=error, expected="the target's safetensors", do="Prepare the target again.") from error
    names = [name for name in places if name.endswith("embed_tokens.weight")]
    if len(names) != 1:
        raise BadInput(str(folder), found=f"embeddings {names}", expected="one embed_tokens.weight", do="Name another target.")
    return places[names[0]], names[0]
