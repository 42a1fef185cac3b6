"""Which of the trainer's rows become golden probes."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from tasks.config import ExportConfig
from tasks.products import TrainProduct
from tasks.verdict import BadInput
from tasks.wiring.probes import Probe, make_probe

# Of all probes together: some hundreds of positions with 4096 draft tokens, some tens with 32000.
_LOGITS_BYTES = 12 << 20


def row_file(train: TrainProduct, row: int) -> Path:
    """Where training wrote its logits of a row."""
    return train.folder / "trainer_logits" / f"{row}.safetensors"


def choose_rows(config: ExportConfig, train: TrainProduct) -> list[int]:
    """The rows with the most tokens (up to the cut), in the order of training's list. Raises BadInput for unreadable ones."""
    lengths = {row: min(_length(row_file(train, row)), config.probe_tokens) for row in train.logits_rows}
    longest = sorted(train.logits_rows, key=lambda row: -lengths[row])[: config.probes]
    return [row for row in train.logits_rows if row in longest]


def golden_probes(config: ExportConfig, train: TrainProduct, rows: list[int]) -> list[Probe]:
    """Raises BadInput when a row is too short for the draft steps, or has values that are no numbers."""
    probes = []
    for row in rows:
        tensors = _read(row_file(train, row))
        try:
            probe = make_probe(
                tensors["token_ids"],
                tensors["features"],
                tensors["logits"],
                tokens=config.probe_tokens,
                logits_bytes=_LOGITS_BYTES // len(rows),
            )
        except (KeyError, ValueError) as error:
            raise BadInput(str(row_file(train, row)), found=error, expected="the trainer's logits", do="Train again.") from error
        if not bool(torch.isfinite(probe.logits_KPV).all() and torch.isfinite(probe.features_SnH).all()):
            raise BadInput(str(row_file(train, row)), found="values that are no numbers", expected="finite logits", do="Train again.")
        probes.append(probe)
    return probes


def _read(path: Path) -> dict[str, torch.Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except (OSError, SafetensorError) as error:
        raise BadInput(str(path), found=error, expected="the trainer's logits", do="Train again.") from error


def _length(path: Path) -> int:
    try:
        with safe_open(path, framework="pt") as file:
            return int(file.get_slice("token_ids").get_shape()[0])
    except (OSError, SafetensorError) as error:
        raise BadInput(str(path), found=error, expected="the trainer's logits", do="Train again.") from error
