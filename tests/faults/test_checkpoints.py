"""Mutants are caught and named; healthy variants raise no alarm."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tasks.config import VerifyConfig
from tasks.report import Silent
from tasks.verdict import Outcome
from tasks.verify import Verification, verify_drafter
from tests.faults.conftest import Score
from tests.faults.mutants import BARE, MUTANTS, PROBED, RECORDED, Mutant, settings, weights
from tests.verify.drafters import HIDDEN, VOCAB, config, tensors, write
from tests.verify.fitted import PROMPT, conversations, held_out, prove
from tests.verify.targets import PlainTarget

LIMIT = 24


def verify(folder: Path, target: PlainTarget) -> Verification:
    rows = conversations(Path(target.model.name_or_path))
    return verify_drafter(
        VerifyConfig(device="cpu"),
        checkpoint=folder,
        target=target,
        held_out=held_out(rows),
        trainer_logits=None,
        trainer_steps=None,
        prompts=[row[:PROMPT] for row in rows[-2:]],
        max_new_tokens=LIMIT,
        steps=[1, 2],
        report=Silent(),
    )


def copied(source: Path, folder: Path, proof: tuple[str, ...]) -> Path:
    shutil.copytree(source, folder)
    for name in set(RECORDED) - set(proof):
        (folder / name).unlink()
    return folder


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.id)
def test_a_mutant_is_caught_and_named(mutant: Mutant, fitted_draft: Path, plain_target: PlainTarget, tmp_path: Path, score: Score) -> None:
    score.mutant(mutant.id, False, False, "stopped")
    folder = copied(fitted_draft, tmp_path / "mutant", mutant.proof)
    mutant.tamper(folder)
    verdict = verify(folder, plain_target).verdict
    caught = verdict.verdict is Outcome.FAIL
    named = caught and verdict.kind == mutant.kind and mutant.hypothesis in (None, *(verdict.hypothesis or "").split(" or "))
    score.mutant(mutant.id, caught, named, f"{verdict.kind}, {verdict.hypothesis}")
    assert caught, verdict
    assert named, verdict
    assert len(verdict.message) > 40, "the message tells a person what is wrong and what to do"


def _renamed(folder: Path) -> None:
    kept = load_file(folder / "model.safetensors")
    names = {name: name.replace("layers.0.", "midlayer.") for name in kept}
    save_file({new: kept[name] for name, new in names.items()}, folder / "model.safetensors")


def _float32(folder: Path) -> None:
    kept = load_file(folder / "model.safetensors")
    save_file({n: w.float() if w.is_floating_point() else w for n, w in kept.items()}, folder / "model.safetensors")
    settings(dtype="float32")(folder)


def _with_t2d(w: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    t2d = torch.zeros(VOCAB, dtype=torch.bool)
    t2d[w["d2t"] + torch.arange(len(w["d2t"]))] = True
    return {"t2d": t2d}


HEALTHY = {
    "as exported": lambda folder: None,
    "names of the original EAGLE-3": _renamed,
    "weights in float32": _float32,
    "with t2d": weights(_with_t2d),
    "with its own embedding": weights(lambda w: {"embed_tokens.weight": torch.randn(VOCAB, HIDDEN).bfloat16()}),
    "theta at the top level": settings(rope_parameters=None, rope_theta=10000.0),
    "dtype as older versions say it": settings(dtype=None, torch_dtype="bfloat16"),
    "another key that nobody reads": settings(bos_token_id=1),
}


@pytest.mark.parametrize("proof", [RECORDED, PROBED, BARE], ids=["record", "probes", "bare"])
@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_variant_passes(
    name: str, proof: tuple[str, ...], fitted_draft: Path, plain_target: PlainTarget, tmp_path: Path, score: Score
) -> None:
    score.healthy(f"{name} ({len(proof)} proofs)", False, "stopped")
    folder = copied(fitted_draft, tmp_path / "healthy", proof)
    HEALTHY[name](folder)
    verdict = verify(folder, plain_target).verdict
    score.healthy(f"{name} ({len(proof)} proofs)", verdict.verdict is Outcome.PASS, str(verdict.kind))
    assert verdict.verdict is Outcome.PASS, verdict


ARCHITECTURES = {
    "seed 1": {},
    "seed 2": {},
    "norm_before_fc": {"norm_before_fc": True},
    "fc_norm": {"fc_norm": True},
    "norm_output": {"norm_output": True},
    "norm_before_fc and norm_output": {"norm_before_fc": True, "norm_output": True},
    "a wider MLP": {"intermediate_size": 200},
    "one KV head": {"num_key_value_heads": 1},
    "as many KV heads as heads": {"num_key_value_heads": 4},
    "wider heads": {"head_dim": 32},
    "another theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
    "llama3's RoPE": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 5e5,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
    "the whole vocabulary": {"draft_vocab_size": VOCAB},
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_healthy_architecture_raises_no_alarm(name: str, plain_target: PlainTarget, tmp_path: Path, score: Score) -> None:
    """Random weights with their own probes: right by construction, and of no quality."""
    score.healthy(name, False, "stopped")
    changes = config(**ARCHITECTURES[name])
    write(tmp_path, changes, tensors(changes, seed=len(name)))
    prove(tmp_path, plain_target)
    verdict = verify(tmp_path, plain_target).verdict
    quiet = verdict.verdict is Outcome.PASS or (verdict.verdict is Outcome.WARN and verdict.kind == "quality")
    score.healthy(name, quiet, str(verdict.kind))
    assert quiet, verdict
