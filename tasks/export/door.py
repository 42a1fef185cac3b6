"""The work behind the door: check, convert, check again what lies on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tasks.config import ExportConfig
from tasks.export.convert import served_config, served_tensors
from tasks.export.golden import choose_rows, golden_probes, row_file
from tasks.export.inputs import Trained, check_inputs, read_json, read_trained
from tasks.products import CaptureProduct, DrafterProduct, TargetProduct, TrainProduct
from tasks.report import Report
from tasks.store import Store, code_digest, sha256_file, sha256_folder, versions, write_atomic
from tasks.verdict import Check, Outcome, ProofFailed, Verdict
from tasks.wiring.checkpoint_contract import CONFIG, WEIGHTS, check_served_form
from tasks.wiring.families import Family, family
from tasks.wiring.probes import FILE as PROBES
from tasks.wiring.probes import Probe, write_probes
from tasks.wiring.record import FILE as RECORD
from tasks.wiring.record import WiringRecord
from tasks.wiring.weights import hashes

STAGE = "export"


def export_drafter(
    config: ExportConfig,
    *,
    train: TrainProduct,
    capture: CaptureProduct,
    target: TargetProduct,
    target_family: str,
    store: Store,
    report: Report,
) -> DrafterProduct:
    """See the door, `tasks.export.export_drafter`."""
    served_as = family(target_family, "target")
    rows = choose_rows(config, train)
    inputs = {
        "checkpoint": train.sha256,
        "capture": capture.sha256,
        "logits": {str(row): sha256_file(row_file(train, row)) for row in rows},
        "steps": [step.model_dump() for step in train.steps],
        "target": [target.sha256, target_family],
        "config": config.model_dump(),
        "code": code_digest("export", "wiring"),
        "versions": versions("torch", "safetensors", "transformers"),
    }

    def build(folder: Path) -> dict[str, Any]:
        trained = read_trained(train)
        checks = check_inputs(trained, train=train, capture=capture, target=target, target_family=target_family)
        _stop_on_failure(checks)
        _write(folder, config, trained, served_as, target.print.num_layers, golden_probes(config, train, rows))
        checks += check_served_form(folder, read_json(target.folder / "config.json"))
        _stop_on_failure(checks)
        for check in checks:
            report.say(f"{check.verdict} {check.name}: {check.message}")
        return {
            "sha256": sha256_folder(folder, [CONFIG, WEIGHTS, RECORD, PROBES]),
            "checks": [check.model_dump(mode="json") for check in checks],
        }

    key = store.key(STAGE, inputs)
    product = store.make(STAGE, key, build)
    return DrafterProduct.model_validate({**product, "folder": store.folder(STAGE, key)})


def _write(folder: Path, config: ExportConfig, trained: Trained, served_as: Family, num_layers: int, probes: list[Probe]) -> None:
    converted = served_config(trained.config, served_as, num_layers, config.dtype)
    tensors = served_tensors(trained.tensors, getattr(torch, config.dtype))
    _stop_on_failure([part for part in (converted, tensors) if isinstance(part, Check)])
    assert isinstance(tensors, dict)
    # One key of metadata only: safetensors 0.8 writes several in any order.
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    write_atomic(folder / CONFIG, json.dumps(converted, indent=1, sort_keys=True) + "\n")
    _record(trained.record, tensors).write(folder)
    write_probes(folder, probes)


def _record(trained: WiringRecord, tensors: dict[str, torch.Tensor]) -> WiringRecord:
    """Training's record, with what export adds: the weights' hashes, and versions."""
    added = {name: version for name, version in versions("safetensors", "transformers").items() if name not in trained.versions}
    return trained.model_copy(update={"weights": hashes(tensors), "versions": dict(sorted({**trained.versions, **added}.items()))})


def _stop_on_failure(checks: list[Check]) -> None:
    if any(check.verdict is Outcome.FAIL for check in checks):
        raise ProofFailed(Verdict.of(STAGE, checks, passed=""))
