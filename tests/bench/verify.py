"""How long `draftproof verify` takes by stage, on the healthy drafter and where a link breaks."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from flows.verification import Asked, verify_checkpoint
from tasks.wiring.probes import FILE as PROBES
from tasks.wiring.record import FILE as RECORD
from tasks.wiring.record import WiringRecord
from tests.bench.drafter import Benched
from tests.faults.mutants import Tamper, settings

_PROOF, _DIAGNOSIS = 60, 120
"""Seconds that a proof, and a diagnosis after it, may take on two cores (issue 3)."""
_STAGES = {
    "rows of logits": "static, parity",
    "prompts decoded": "greedy answers",
    "prompts answered": "held-out answers",
    "held-out conversations": "accuracy",
    "hypotheses": "diagnosis",
}
# What ends after the last progress: the acceptance is simulated, which tells no progress.
_REST = "acceptance, verdict"


class Clock:
    """A `Report` that charges the time since the last progress to the stage of this one."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.monotonic()

    def charge(self, stage: str) -> None:
        now = time.monotonic()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._last
        self._last = now

    def progress(self, done: float, total: float, unit: str, measured: Mapping[str, float] | None = None) -> None:
        self.charge(_STAGES.get(unit, "target"))

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        return None

    def say(self, text: str) -> None:
        self.charge("target")


def measure(benched: Benched) -> tuple[Table, list[dict[str, Any]]]:
    """Once each, as `draftproof verify` does it with its built-in prompts. With a break the diagnosis has the acceptance's time too."""
    draft = WiringRecord.read(benched.drafter).draft
    wrong = settings(rope_parameters={"rope_type": "default", "rope_theta": (draft.rope.theta if draft else 1e4) / 10})
    cases: dict[str, tuple[Tamper, tuple[str, ...]]] = {
        "as exported": (lambda folder: None, ()),
        "wrong RoPE, with golden probes": (wrong, (RECORD,)),
        "without record and probes": (lambda folder: None, (RECORD, PROBES)),
        "wrong RoPE, without either": (wrong, (RECORD, PROBES)),
    }
    with tempfile.TemporaryDirectory() as scratch:
        found = [_case(benched, name, tamper, left_out, Path(scratch) / name) for name, (tamper, left_out) in cases.items()]
    stages = ["target", *_STAGES.values(), _REST]
    table = Table(title=f"draftproof verify, seconds (the proof at most {_PROOF}, a diagnosis {_DIAGNOSIS} more)")
    for heading in ("drafter", "verdict", "named", *stages, "proof"):
        table.add_column(heading, justify="left" if heading in ("drafter", "verdict", "named") else "right")
    for row in found:
        times = (f"{row['seconds'][stage]:.1f}" if stage in row["seconds"] else "" for stage in stages)
        table.add_row(
            row["drafter"], row["verdict"], row["named"] or "", *times, f"{row['proof']:.1f}{'' if row['in_time'] else ' (late)'}"
        )
    return table, found


def _case(benched: Benched, name: str, tamper: Tamper, left_out: tuple[str, ...], folder: Path) -> dict[str, Any]:
    shutil.copytree(benched.drafter, folder, ignore=shutil.ignore_patterns(*left_out))
    tamper(folder)
    clock = Clock()
    verdict = verify_checkpoint(Asked(folder, str(benched.target.folder)), clock).found.verdict
    clock.charge(_REST)
    diagnosis = clock.seconds.get("diagnosis", 0.0)
    proof = sum(clock.seconds.values()) - diagnosis
    return {
        "drafter": name,
        "verdict": str(verdict.verdict),
        "named": verdict.hypothesis,
        "seconds": clock.seconds,
        "proof": proof,
        "in_time": proof <= _PROOF and diagnosis <= _DIAGNOSIS,
    }
