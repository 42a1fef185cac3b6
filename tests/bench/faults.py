"""Faults planted in copies of a real drafter: what an accuracy gate sees of them, and what `verify` says."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from safetensors.torch import load_file, save_file

from tasks.config import VerifyConfig
from tasks.report import Silent
from tasks.verdict import Outcome
from tasks.verify import HeldOut, Verification, verify_drafter
from tasks.wiring.families import family_of_config
from tasks.wiring.record import FILE as RECORD
from tasks.wiring.record import WiringRecord
from tasks.wiring.translate import sglang_ids
from tests.bench.drafter import Benched
from tests.faults.mutants import Tamper, settings

_CONVERSATIONS = 32
_GATES = (0.01, 0.02, 0.05)
"""Falls of the first step's accuracy at which a gate would stop."""


def measure(benched: Benched) -> tuple[Table, list[dict[str, Any]]]:
    """One row per fault. The record is taken away, so that the numbers decide and not what is written down."""
    rows = benched.held_out(_CONVERSATIONS)
    with tempfile.TemporaryDirectory() as scratch:
        found = [_row(name, benched, tamper, rows, Path(scratch) / str(i)) for i, (name, tamper) in enumerate(_faults(benched).items())]
    right = found[0]["accuracy"][0]
    for row in found:
        fall = right - row["accuracy"][0] if row["accuracy"] else None
        row["gates"] = {f"{gate:.0%}": fall is None or fall > gate for gate in _GATES}
    return _table(found), found


def _faults(benched: Benched) -> dict[str, Tamper]:
    """Those of `facts/speculators.md` that a folder can hold."""
    record = WiringRecord.read(benched.drafter)
    fed, layers, config = record.features.boundaries, record.target.num_layers, benched.target.folder / "config.json"
    family = family_of_config(json.loads(config.read_text()), str(config))

    def boundaries(*fed: int) -> Tamper:
        return settings(eagle_config={"eagle_aux_hidden_state_layer_ids": sglang_ids(fed, family, layers)})

    def columns(*order: int) -> Tamper:
        return _weights(lambda w: {"fc.weight": torch.cat([w["fc.weight"].chunk(len(order), 1)[i] for i in order], 1)})

    theta = record.draft.rope.theta if record.draft else 1e4
    return {
        "none": lambda folder: None,
        "every layer +1": boundaries(*(b + 1 for b in fed)),
        "every layer -1": boundaries(*(b - 1 for b in fed)),
        "the last three layers": boundaries(layers - 3, layers - 2, layers - 1),
        "order high, mid, low": columns(2, 1, 0),
        "order mid, low, high": columns(1, 0, 2),
        "embedding and hidden swapped": _weights(_halves),
        "d2t read as ids": _weights(lambda w: {"d2t": w["d2t"] + torch.arange(len(w["d2t"]))}),
        "d2t ignored": _weights(lambda w: {"d2t": torch.zeros_like(w["d2t"])}),
        f"RoPE theta {theta / 10:g}": _theta(theta / 10),
        f"RoPE theta {theta * 5:g}": _theta(theta * 5),
        "norm_output flipped": settings(norm_output=not (record.draft and record.draft.norm_output)),
        "head rows one off": _weights(lambda w: {"lm_head.weight": w["lm_head.weight"].roll(1, 0)}),
        "no head": lambda folder: _rewrite(folder, lambda w: {name: w[name] for name in w if name != "lm_head.weight"}),
        "random weights": _weights(
            lambda w: {name: torch.randn_like(w[name]) * 0.02 for name in w if "proj" in name or name == "fc.weight"}
        ),
    }


def _row(name: str, benched: Benched, tamper: Tamper, rows: list[HeldOut], folder: Path) -> dict[str, Any]:
    shutil.copytree(benched.drafter, folder, ignore=shutil.ignore_patterns(RECORD))
    tamper(folder)
    began = time.monotonic()
    found = _verify(benched, folder, rows)
    verdict = found.verdict
    return {
        "fault": name,
        "accuracy": [step.accuracy.value for step in found.steps],
        "interval": [found.steps[0].accuracy.low, found.steps[0].accuracy.high] if found.steps else None,
        "positions": found.steps[0].positions if found.steps else 0,
        "max_logit_difference": found.max_logit_difference,
        "verdict": verdict.verdict,
        "kind": verdict.kind,
        "named": verdict.hypothesis or (verdict.message if verdict.verdict is Outcome.FAIL else None),
        "seconds": time.monotonic() - began,
    }


def _verify(benched: Benched, folder: Path, rows: list[HeldOut]) -> Verification:
    return verify_drafter(
        VerifyConfig(),
        checkpoint=folder,
        target=benched.opened,
        held_out=rows,
        trainer_logits=None,
        trainer_steps=None,
        prompts=[],
        max_new_tokens=0,
        steps=[],
        report=Silent(),
    )


def _weights(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Tamper:
    return lambda folder: _rewrite(folder, lambda w: {**w, **change(w)})


def _rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    torch.manual_seed(0)
    path = folder / "model.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in change(load_file(path)).items()}, path)


def _halves(w: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: torch.cat(w[name].chunk(2, 1)[::-1], 1) for name in w if any(f"self_attn.{which}_proj.weight" in name for which in "qkv")}


def _theta(value: float) -> Tamper:
    return settings(rope_parameters={"rope_type": "default", "rope_theta": value})


def _table(found: list[dict[str, Any]]) -> Table:
    faults = [row for row in found if row["fault"] != "none"]
    table = Table(title=f"Faults planted in a real drafter, {found[0]['positions']} held-out positions")
    for heading in ("fault", "accuracy by step", "logits", *(f"gate {gate:.0%}" for gate in _GATES), "verify", "named", "s"):
        table.add_column(heading, justify="right" if heading in ("logits", "s") else "left")
    for row in found:
        difference = row["max_logit_difference"]
        table.add_row(
            row["fault"],
            " ".join(f"{value:.3f}" for value in row["accuracy"]) or "–",
            "–" if difference is None else f"{difference:.2g}",
            *("stops" if stops else "passes" for stops in row["gates"].values()),
            str(row["verdict"]),
            (row["named"] or "")[:60],
            f"{row['seconds']:.0f}",
        )
    caught = [f"{sum(row['gates'][f'{gate:.0%}'] for row in faults)}/{len(faults)}" for gate in _GATES]
    table.add_section()
    table.add_row("detected", "", "", *caught, f"{sum(row['verdict'] == 'FAIL' for row in faults)}/{len(faults)}", "", "")
    return table
