"""A drafter that is really fitted to the fitted tiny target, exported with its record and probes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tasks.verify.checkpoint import read_checkpoint
from tasks.verify.drafter import Drafter, load_drafter
from tasks.verify.results import HeldOut
from tasks.wiring import vocabulary
from tasks.wiring.probes import make_probe, write_probes
from tasks.wiring.record import Draft, Features, TargetPrint, WiringRecord
from tasks.wiring.weights import hashes
from tests.tiny import STYLES, TOPICS, story
from tests.verify.drafters import BOUNDARIES, DRAFT_VOCAB, config, tensors, write
from tests.verify.targets import PlainTarget

STEPS = 3
PROMPT = 4
HELD_OUT = 16


def conversations(target: Path) -> list[list[int]]:
    """Every story of the grammar as tokens, one per word; the last HELD_OUT are not fitted to."""
    from transformers import AutoTokenizer

    words = AutoTokenizer.from_pretrained(target)
    texts = [f"<user> {topic} {style} <assistant> {' '.join(story(topic, style))} </s>" for topic in TOPICS for style in STYLES]
    order = torch.randperm(len(texts), generator=torch.Generator().manual_seed(0)).tolist()
    return [words(texts[i], add_special_tokens=False)["input_ids"] for i in order]


def held_out(rows: list[list[int]]) -> list[HeldOut]:
    return [HeldOut(id=str(i), tokens=row, spans=[(PROMPT, len(row))]) for i, row in enumerate(rows[-HELD_OUT:])]


def fitted_drafter(folder: Path, target_folder: Path, *, seed: int = 0, updates: int = 120, **flags: Any) -> Path:
    """Fit, round to bfloat16, and export with record and probes."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # matrices this small only wait for a second thread: 15 s instead of 57 on two busy cores
    torch.manual_seed(seed)
    target = PlainTarget(target_folder)
    rows = conversations(target_folder)
    tokens = torch.tensor(rows[:-HELD_OUT])
    chosen = torch.bincount(tokens[:, PROMPT:].flatten(), minlength=target.facts.vocab_size).topk(DRAFT_VOCAB).indices.sort().values
    settings = {**config(**flags), "dtype": "bfloat16"}
    weights = {**tensors(settings, seed), "d2t": vocabulary.offsets(chosen)}
    drafter = load_drafter(read_checkpoint(write(folder, {**settings, "dtype": "float32"}, weights)), target.embedding())
    features = torch.stack([features_of(target, row) for row in tokens.tolist()])
    _fit(drafter, tokens, features, updates)
    saved = {name: tensor.detach().bfloat16() for name, tensor in drafter.weights.items()}
    write(folder, settings, {**saved, "d2t": weights["d2t"]})
    prove(folder, target)
    torch.set_num_threads(threads)
    return folder


def features_of(target: PlainTarget, row: list[int], boundaries: list[int] = BOUNDARIES) -> torch.Tensor:
    target.start()
    return target.extend(torch.tensor(row), boundaries, 1)[1].bfloat16().float()


def _fit(drafter: Drafter, tokens: torch.Tensor, features: torch.Tensor, updates: int) -> None:
    to_draft = torch.full((len(drafter.embedding),), -100)
    to_draft[drafter.target_ids_V] = torch.arange(DRAFT_VOCAB)
    parameters = [weight.requires_grad_() for weight in drafter.weights.values()]
    optimizer = torch.optim.Adam(parameters, lr=5e-3)
    for _ in range(updates):
        picked = torch.randint(len(tokens), (16,))
        loss = torch.zeros(())
        for k, final in enumerate(drafter.unroll(tokens[picked], features[picked], STEPS)):
            wanted = to_draft[tokens[picked, 2 + k :]]
            logits = drafter.logits(final[:, : wanted.shape[1]])
            loss = loss + torch.nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for weight in parameters:
        weight.requires_grad_(False)


def prove(folder: Path, target: PlainTarget, boundaries: list[int] = BOUNDARIES) -> None:
    """Write record and probes for the drafter as it lies in the folder."""
    opened = read_checkpoint(folder)
    drafter = load_drafter(opened, target.embedding())
    rows = conversations(Path(target.model.name_or_path))
    probes = []
    for row in rows[-2:]:
        features = features_of(target, row, boundaries)
        logits = torch.stack([drafter.logits(final[0]) for final in drafter.unroll(torch.tensor(row)[None], features[None], STEPS)])
        probes.append(make_probe(torch.tensor(row), features, logits, tokens=len(row), logits_bytes=1 << 20))
    write_probes(folder, probes)
    a, sizes = opened.architecture, target.facts
    names = [name for name in Draft.model_fields if hasattr(a, name)]
    draft = Draft(**{name: getattr(a, name) for name in names}, hidden_act="silu", ttt_steps=STEPS)
    printed = TargetPrint(
        config="0",
        weights="0",
        tokenizer="0",
        chat_template="0",
        family=sizes.model_type,
        num_layers=sizes.num_layers,
        hidden_size=sizes.hidden_size,
        vocab_size=sizes.vocab_size,
    )
    WiringRecord(
        target=printed,
        features=Features(boundaries=boundaries, dtype="bfloat16", compute_dtype="float32"),
        data_sha256="0",
        draft=draft,
        vocab_map=vocabulary.vocab_map(opened.tensor("d2t"), sizes.vocab_size),
        weights=hashes({name: opened.tensor(name) for name in opened.stored}),
    ).write(folder)


def retouch(folder: Path, weights: dict[str, torch.Tensor] | None = None, **changes: Any) -> None:
    """Replace tensors and config keys in place."""
    from safetensors.torch import load_file

    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, **changes}))
    if weights:
        kept = load_file(folder / "model.safetensors")
        save_file({**kept, **weights}, folder / "model.safetensors")
