"""The wiring record of a drafter against its own files: the one static check that sees a value which is valid but not the trained one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from tasks.verdict import BadInput, Check
from tasks.wiring.families import family
from tasks.wiring.kinds import Kind
from tasks.wiring.record import Draft, WiringRecord
from tasks.wiring.rope import resolve
from tasks.wiring.served_config import IDS, TargetSizes, broken, fed_boundaries, flags, passed
from tasks.wiring.translate import sglang_ids
from tasks.wiring.vocabulary import hash_of, vocab_map

_SIZES = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps", "hidden_act")


def check_record(record: WiringRecord, config: Mapping[str, Any], d2t_D: torch.Tensor | None, target: TargetSizes) -> list[Check]:
    """One check per part of the record that the drafter's files have to agree with."""
    name = "wiring record"
    if record.draft is None or record.vocab_map is None:
        message = "wiring.json tells no draft architecture or vocabulary map: training did not add them. Train again."
        return [broken(name, Kind.SILENT_LOSS, message)]
    found = [
        *_target(record, target),
        *_boundaries(record, config, target),
        *_architecture(record.draft, config),
        *_rope(record.draft, config),
        *_vocabulary(record, d2t_D),
    ]
    return found or [passed(name, "config.json and d2t say what wiring.json says", {"boundaries": record.features.boundaries})]


def _target(record: WiringRecord, target: TargetSizes) -> Iterator[Check]:
    before = record.target
    trained = (family(before.family).name, before.num_layers, before.hidden_size, before.vocab_size)
    served = (target.family.name, target.num_layers, target.hidden_size, target.vocab_size)
    if trained != served:
        message = f"The drafter is for a target {trained} (family, layers, hidden size, vocabulary), this one is {served}. Serve its own."
        yield broken("wiring record: target", Kind.ARCHITECTURE_FLAGS, message, {"trained": trained, "served": served})


def _boundaries(record: WiringRecord, config: Mapping[str, Any], target: TargetSizes) -> Iterator[Check]:
    name, trained = "wiring record: boundaries", record.features.boundaries
    try:
        fed = fed_boundaries(config, target)
        right = sglang_ids(trained, target.family, target.num_layers)
    except BadInput as error:
        yield broken(name, Kind.LAYER_BOUNDARIES, str(error), {"trained": trained})
        return
    if fed != trained:
        message = f"The server feeds boundaries {fed}; the drafter was trained on {trained}; set eagle_config.{IDS} to {right}."
        yield broken(name, Kind.LAYER_BOUNDARIES, message, {"fed": fed, "trained": trained, "ids": right})


def _architecture(draft: Draft, config: Mapping[str, Any]) -> Iterator[Check]:
    said = {**{key: config.get(key) for key in _SIZES}, **flags(config)}
    wrong = {key: [value, getattr(draft, key)] for key, value in said.items() if value != getattr(draft, key)}
    if wrong:
        named = ", ".join(f"{key} {value} (trained: {trained})" for key, (value, trained) in wrong.items())
        message = f"config.json says {named}. Export the drafter again."
        yield broken("wiring record: architecture", Kind.ARCHITECTURE_FLAGS, message, wrong)
    length = config.get("max_position_embeddings")
    if length != draft.max_position_embeddings:
        message = f"config.json says {length} positions, trained were {draft.max_position_embeddings}. Export the drafter again."
        yield broken("wiring record: positions", Kind.CONTEXT_LENGTH, message, {"said": length, "trained": draft.max_position_embeddings})
    if draft.attention_window is not None:
        window = draft.attention_window
        message = f"The drafter was trained with a window of {window}. Serve with --speculative-draft-window-size {window}."
        yield broken("wiring record: window", Kind.ATTENTION_MASK, message, {"window": window}, warn=True)


def _rope(draft: Draft, config: Mapping[str, Any]) -> Iterator[Check]:
    try:
        rope = resolve(config)
    except BadInput as error:
        yield broken("wiring record: rope", Kind.ROPE, str(error))
        return
    if rope != draft.rope:
        message = f"config.json resolves to {rope.model_dump()}, trained was {draft.rope.model_dump()}. Export the drafter again."
        yield broken("wiring record: rope", Kind.ROPE, message, {"said": rope.model_dump(), "trained": draft.rope.model_dump()})


def _vocabulary(record: WiringRecord, d2t_D: torch.Tensor | None) -> Iterator[Check]:
    trained = record.vocab_map
    assert trained is not None
    found = vocab_map(d2t_D, trained.target_size)
    if found == trained:
        return
    as_ids = d2t_D is not None and hash_of(d2t_D) == trained.sha256
    what = "d2t holds target ids where offsets are read" if as_ids else "d2t is not the map that the drafter was trained with"
    message = f"{what}: hash {found.sha256[:12]}…, trained {trained.sha256[:12]}…. Export the drafter again."
    yield broken("wiring record: vocabulary map", Kind.VOCAB_MAP, message, {"as_ids": as_ids})
