"""Faults planted in a real drafter: what gates on its accuracy see of them, and what `verify` says."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.table import Table

from tasks.config import VerifyConfig
from tasks.report import Silent
from tasks.verdict import Outcome
from tasks.verify import HeldOut, Verification, accuracy, parity, static, verify_drafter
from tasks.verify.checkpoint import read_checkpoint
from tasks.verify.drafter import Drafter, load_drafter
from tasks.verify.features import Features
from tasks.verify.results import StepAccuracy
from tasks.wiring.probes import read_probes
from tasks.wiring.record import FILE as RECORD
from tasks.wiring.record import WiringRecord
from tasks.wiring.target import TargetForward
from tests.bench.drafter import Benched
from tests.bench.planted import Feeding, Planted, planted

_CONVERSATIONS, _STEPS = 32, 3
Steps = Sequence[StepAccuracy]


def _fall(points: float) -> Callable[[Steps, Steps], bool]:
    return lambda found, right: right[0].accuracy.value - found[0].accuracy.value > points


# Where a gate on the accuracy would stop: the first step falls by so much, or below the healthy drafter's interval; the
# strictest looks at every step.
_GATES: dict[str, Callable[[Steps, Steps], bool]] = {
    "-1%": _fall(0.01),
    "-2%": _fall(0.02),
    "-5%": _fall(0.05),
    "interval": lambda found, right: found[0].accuracy.value < right[0].accuracy.low,
    "interval, any step": lambda found, right: any(f.accuracy.value < r.accuracy.low for f, r in zip(found, right, strict=True)),
}


def measure(benched: Benched) -> tuple[Table, dict[str, Any]]:
    """One row per fault. The record is taken away, so that the numbers decide and not what is written down."""
    rows, faults = benched.held_out(_CONVERSATIONS), planted(benched)
    found, healthy = [], []
    with tempfile.TemporaryDirectory() as scratch:
        for i, fault in enumerate(faults):
            steps, row = _row(fault, benched, rows, Path(scratch) / str(i))
            healthy = healthy or steps
            # A drafter that cannot be loaded has no accuracy: any gate stops it.
            found.append({**row, "gates": {name: not steps or gate(steps, healthy) for name, gate in _GATES.items()}})
    figures = {"positions": healthy[0].positions, "conversations": len(rows), "detected": _rates(found), "faults": found}
    return _table(figures), figures


def _row(fault: Planted, benched: Benched, rows: list[HeldOut], folder: Path) -> tuple[Steps, dict[str, Any]]:
    shutil.copytree(benched.drafter, folder, ignore=shutil.ignore_patterns(RECORD))
    if fault.folder:
        fault.folder(folder)
    target: TargetForward = Feeding(benched.opened, fault.feed) if fault.feed else benched.opened
    began = time.monotonic()
    found = None if fault.in_engine else _verify(folder, target, rows)
    seconds = time.monotonic() - began
    served = _served(fault, benched, folder)
    steps: Steps = found.steps if found else []
    if served and not steps:
        features = Features(target, served[1], None)
        steps, _ = accuracy.total(
            [
                accuracy.count(served[0], target, row, *features.of(row), steps=_STEPS, tie=VerifyConfig().max_logit_difference)
                for row in rows
            ]
        )
    difference = _difference(benched, *served, target) if served else None
    said = found.verdict if found else None
    words = f"{said.hypothesis or ''} {said.message}" if said else ""
    return steps, {
        "fault": fault.name,
        "kind": said.kind if said else None,
        "accuracy": [step.accuracy.model_dump() for step in steps],
        "right": [step.right for step in steps],
        "logit_difference": difference,
        "parity": found.max_logit_difference if found else None,
        "verdict": said.verdict if said else None,
        # Of an engine's own fault no file tells; the served logits do, which link 3 compares under parity's bound.
        "caught": said.verdict is Outcome.FAIL if said else (difference or 0) > VerifyConfig().max_logit_difference,
        "hypothesis": said.hypothesis if said else None,
        "message": said.message if said else None,
        "named_right": said.kind == fault.kind and fault.said in words if said else None,
        "seconds": seconds if said else None,
    }


def _verify(folder: Path, target: TargetForward, rows: list[HeldOut]) -> Verification:
    return verify_drafter(
        VerifyConfig(),
        checkpoint=folder,
        target=target,
        held_out=rows,
        trainer_logits=None,
        trainer_steps=None,
        prompts=[],
        max_new_tokens=0,
        steps=[],
        report=Silent(),
    )


def _served(fault: Planted, benched: Benched, folder: Path) -> tuple[Drafter, list[int]] | None:
    """What a server would run, and the boundaries that it would feed; None where it cannot."""
    if fault.engine or fault.fed:
        right = load_drafter(read_checkpoint(benched.drafter), benched.opened.embedding())
        return fault.engine(right) if fault.engine else right, list(fault.fed or WiringRecord.read(benched.drafter).features.boundaries)
    opened = read_checkpoint(folder)
    facts = static.examine(opened, None, benched.opened.facts, longest=0)
    if facts.boundaries is None or not facts.loadable:
        return None
    return load_drafter(opened, benched.opened.embedding()), facts.boundaries


def _difference(benched: Benched, drafter: Drafter, fed: list[int], target: TargetForward) -> float:
    """Largest logit difference from the trainer's on the golden probes, given what a server feeds.

    Where features are the trained ones it is given those that are stored, to the bit: they are rounded to bfloat16.
    """
    features, probes = Features(target, fed, None), read_probes(benched.drafter) or []
    trained = target is benched.opened and fed == WiringRecord.read(benched.drafter).features.boundaries
    given = [p if trained else replace(p, features_SnH=features.at(p.token_ids_S.tolist(), fed)) for p in probes]
    return max(step.max_difference for probe in given for step in parity.compare(drafter, probe))


def _rates(found: list[dict[str, Any]]) -> dict[str, str]:
    """Of the faults, how many each gate, and `verify`, stops; and how many of those that it can name it names rightly."""
    faults = [row for row in found if row["fault"] != "none"]
    named = [row["named_right"] for row in faults if row["named_right"] is not None]
    rates = {name: f"{sum(row['gates'][name] for row in faults)}/{len(faults)}" for name in _GATES}
    return {**rates, "verify": f"{sum(row['caught'] for row in faults)}/{len(faults)}", "named": f"{sum(named)}/{len(named)}"}


def _table(figures: dict[str, Any]) -> Table:
    table = Table(title=f"Faults planted in a real drafter, {figures['positions']} held-out positions")
    headings = ("fault", "accuracy by step", "logits", *(f"gate {name}" for name in _GATES), "verify", "named", "s")
    for heading in headings:
        table.add_column(heading, justify="right" if heading in ("logits", "s") else "left")
    for row in figures["faults"]:
        difference, verdict = row["logit_difference"], row["verdict"] or "served logits"
        table.add_row(
            row["fault"],
            " ".join(f"{step['value']:.3f}" for step in row["accuracy"]) or "–",
            "–" if difference is None else f"{difference:.2g}",
            *("stops" if stops else "passes" for stops in row["gates"].values()),
            str(verdict),
            (row["hypothesis"] or row["kind"] or "") + ("" if row["named_right"] is not False or row["fault"] == "none" else " (wrong)"),
            "" if row["seconds"] is None else f"{row['seconds']:.0f}",
        )
    rates = figures["detected"]
    table.add_section()
    table.add_row("detected", "", "", *(rates[name] for name in _GATES), rates["verify"], rates["named"], "")
    return table
