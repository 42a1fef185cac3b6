"""The training stage: what it depends on, then the product in the store.

Nothing here imports the library that trains (10 s on a small machine): a drafter that is in the store does without.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tasks.config import TrainConfig
from tasks.device import place
from tasks.products import CaptureProduct, DataProduct, TargetProduct, TrainProduct
from tasks.report import Report
from tasks.store import Store, code_digest, versions
from tasks.verdict import BadInput
from tasks.wiring.record import WiringRecord

LIBRARIES = ("speculators", "transformers", "torch", "safetensors")


def run(
    config: TrainConfig,
    *,
    seed: int,
    data: DataProduct,
    capture: CaptureProduct,
    target: TargetProduct,
    parity_rows: int,
    store: Store,
    report: Report,
) -> TrainProduct:
    """See `tasks.train.train_drafter`."""
    placement = place(config.device, config.dtype)
    wiring = check_wiring(capture, data, target)
    inputs = {
        "config": config.model_dump(),
        "placement": placement.model_dump(),
        "seed": seed,
        "data": data.sha256,
        "capture": capture.sha256,
        "target": target.sha256,
        "parity_rows": parity_rows,
        "versions": versions(*LIBRARIES),
        "code": code_digest("train"),
    }
    key = store.key("train", inputs)

    def build(folder: Path) -> dict[str, Any]:
        from tasks.train.job import Job
        from tasks.train.rows import read_rows

        rows = read_rows(data, masked_first=config.ttt_steps)
        return Job(config, placement, seed, rows, capture, target, wiring, parity_rows, report).build(folder)

    product = store.make("train", key, build)
    return TrainProduct.model_validate({**product, "folder": store.folder("train", key)})


def check_wiring(capture: CaptureProduct, data: DataProduct, target: TargetProduct) -> WiringRecord:
    """The record beside the features. Raises BadInput where it says something else than the products do."""
    record = WiringRecord.read(capture.folder)
    for name, recorded, handed in (
        ("boundaries", record.features.boundaries, capture.boundaries),
        ("target", record.target, target.print),
        ("data_sha256", record.data_sha256, data.sha256),
    ):
        if recorded != handed:
            raise BadInput(
                str(capture.folder / "wiring.json"), found=f"{name} {recorded}", expected=f"{handed}", do="Capture the features again."
            )
    return record
