"""The mutants of part 2, written down as a list: what is broken, and what the verifier has to say about it.

Each starts from the fitted drafter of tests/verify/fitted.py. `proof` says which of its own proofs the mutant keeps:
the record (static checks can know), the golden probes (the logits decide), or neither (only the likelihood of the
target's tokens can tell).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from tasks.wiring.probes import FILE as PROBES
from tasks.wiring.record import FILE as RECORD
from tests.verify.drafters import BOUNDARIES, HIDDEN, VOCAB, config, tensors
from tests.verify.fitted import retouch

RECORDED, PROBED, BARE = (RECORD, PROBES), (PROBES,), ()
Tamper = Callable[[Path], None]


@dataclass(frozen=True)
class Mutant:
    """`hypothesis` None: none is asked for."""

    name: str
    kind: str
    hypothesis: str | None
    tamper: Tamper
    proof: tuple[str, ...]

    @property
    def id(self) -> str:
        kept = {RECORDED: "record", PROBED: "probes", BARE: "bare"}[self.proof]
        return f"{self.kind}: {self.name} ({kept})"


def settings(**changes: Any) -> Tamper:
    return lambda folder: retouch(folder, **changes)


def ids(*values: int) -> Tamper:
    return settings(eagle_config={"eagle_aux_hidden_state_layer_ids": list(values)})


def eagle(**more: Any) -> Tamper:
    return settings(eagle_config={**config()["eagle_config"], **more})


def weights(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Tamper:
    return lambda folder: retouch(folder, change(load_file(folder / "model.safetensors")))


def dropped(name: str) -> Tamper:
    def tamper(folder: Path) -> None:
        from safetensors.torch import save_file

        kept = load_file(folder / "model.safetensors")
        del kept[name]
        save_file(kept, folder / "model.safetensors")

    return tamper


def _columns(order: list[int]) -> Tamper:
    return weights(lambda w: {"fc.weight": torch.cat([w["fc.weight"].chunk(3, 1)[i] for i in order], 1)})


def _halves(w: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    names = [f"layers.0.self_attn.{which}_proj.weight" for which in "qkv"]
    return {name: torch.cat(w[name].chunk(2, 1)[::-1], 1) for name in names}


def _shuffled(w: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {name: tensor[torch.randperm(len(tensor), generator=generator)] for name, tensor in w.items() if "proj" in name}


def _of_another_training(w: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Everything but the vocabulary map."""
    others = {name.replace("midlayer.", "layers.0."): tensor.bfloat16() for name, tensor in tensors(config(), seed=1).items()}
    return {name: others[name] for name in w if name != "d2t"}


def _another_head(w: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {"lm_head.weight": _of_another_training(w)["lm_head.weight"]}


def _in_each(name: str, kind: str, hypothesis: str | None, tamper: Tamper, *proofs: tuple[str, ...]) -> list[Mutant]:
    return [Mutant(name, kind, hypothesis, tamper, proof) for proof in proofs or (RECORDED, PROBED, BARE)]


def _theta(value: float) -> Tamper:
    return settings(rope_parameters={"rope_type": "default", "rope_theta": value})


low, middle, high = (boundary - 1 for boundary in BOUNDARIES)
MUTANTS: list[Mutant] = [
    # K1
    *_in_each("every id one too high", "layer-boundaries", "boundaries one too high", ids(low + 1, middle + 1, high + 1)),
    *_in_each("every id one too low", "layer-boundaries", "boundaries one too low", ids(low - 1, middle - 1, high - 1)),
    *_in_each("the first id one too high", "layer-boundaries", "feature 0 one too high", ids(low + 1, middle, high)),
    *_in_each("the middle id one too low", "layer-boundaries", "feature 1 one too low", ids(low, middle - 1, high)),
    *_in_each("the ids are not where SGLang looks", "layer-boundaries", None, settings(eagle_config={}), RECORDED, PROBED),
    *_in_each("one id too many", "layer-boundaries", None, ids(low, low + 1, middle, high)),
    *_in_each("the last id after the last layer", "layer-boundaries", None, ids(low, middle, 5)),
    *_in_each("one id twice", "layer-boundaries", None, ids(low, middle, middle)),
    *_in_each("two features swapped", "layer-boundaries", "features in the order [1, 0, 2]", _columns([1, 0, 2])),
    *_in_each("features in reverse", "layer-boundaries", "features in the order [2, 1, 0]", _columns([2, 1, 0])),
    # K2
    *_in_each("norm_output on", "architecture-flags", "norm_output flipped", settings(norm_output=True), RECORDED, PROBED),
    *_in_each(
        "norm_before_residual on", "architecture-flags", "norm_before_residual flipped", settings(norm_before_residual=True), RECORDED
    ),
    *_in_each("norm_before_fc without weights", "architecture-flags", None, settings(norm_before_fc=True, eagle_config={})),
    *_in_each("norm_output where SGLang does not look", "architecture-flags", None, eagle(norm_output=True)),
    *_in_each("no auxiliary hidden states", "architecture-flags", None, eagle(use_aux_hidden_state=False)),
    *_in_each("fc_norm without weights", "architecture-flags", None, settings(fc_norm=True)),
    *_in_each(
        "input_norm that no flag asks for", "architecture-flags", None, weights(lambda w: {"input_norm.weight": torch.ones(3 * HIDDEN)})
    ),
    *_in_each("embedding and hidden swapped", "architecture-flags", "embedding and hidden swapped", weights(_halves)),
    # K3
    *_in_each("no head", "tensors", None, dropped("lm_head.weight")),
    *_in_each("no hidden norm", "tensors", None, dropped("layers.0.hidden_norm.weight")),
    *_in_each("a tensor too many", "tensors", None, weights(lambda w: {"layers.1.mlp.up_proj.weight": torch.ones(2, 2)})),
    *_in_each("a head of NaN", "tensors", None, weights(lambda w: {"lm_head.weight": w["lm_head.weight"] * torch.nan})),
    *_in_each("a head of zeros", "tensors", None, weights(lambda w: {"lm_head.weight": w["lm_head.weight"] * 0})),
    *_in_each(
        "head rows rotated", "tensors", "head rows rotated by 1", weights(lambda w: {"lm_head.weight": w["lm_head.weight"].roll(1, 0)})
    ),
    *_in_each("shuffled weights", "tensors", "weights of another training", weights(_shuffled), RECORDED),
    *_in_each("shuffled weights", "tensors", None, weights(_shuffled), PROBED),
    *_in_each("weights of another training", "tensors", "weights of another training", weights(_of_another_training), RECORDED),
    *_in_each("weights of another training", "tensors", None, weights(_of_another_training), PROBED),
    *_in_each("a head of another training", "tensors", "other values in lm_head.weight", weights(_another_head), RECORDED),
    *_in_each("a head of another training", "tensors", None, weights(_another_head), PROBED),
    # K4
    *_in_each(
        "d2t holds ids", "vocab-map", "d2t holds ids, not offsets", weights(lambda w: {"d2t": w["d2t"] + torch.arange(len(w["d2t"]))})
    ),
    *_in_each("d2t is all zero", "vocab-map", None, weights(lambda w: {"d2t": w["d2t"] * 0}), RECORDED),
    *_in_each("d2t leaves the vocabulary", "vocab-map", None, weights(lambda w: {"d2t": w["d2t"] + VOCAB})),
    *_in_each("d2t falls", "vocab-map", None, weights(lambda w: {"d2t": w["d2t"].flip(0)})),
    *_in_each(
        "t2d marks other tokens",
        "vocab-map",
        None,
        weights(lambda w: {"t2d": torch.arange(VOCAB) < len(w["d2t"])}),
    ),
    # K8
    *_in_each("theta 1e6 for 1e4", "rope", "RoPE theta 10000", _theta(1e6)),
    *_in_each("theta 5e5 for 1e4", "rope", "RoPE theta 10000", _theta(5e5), RECORDED, PROBED),
    *_in_each(
        "positions scaled by two",
        "rope",
        None,
        settings(rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}),
        RECORDED,
        PROBED,
    ),
    # K9
    *_in_each("positions for 20 tokens", "context-length", None, settings(max_position_embeddings=20), BARE),
    # K11
    *_in_each("config says float32", "dtype-quantisation", None, settings(dtype="float32")),
    *_in_each("one tensor of another dtype", "dtype-quantisation", None, weights(lambda w: {"norm.weight": w["norm.weight"].float()})),
]
