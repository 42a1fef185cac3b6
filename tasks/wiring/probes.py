"""The trainer's own logits on held-out tokens: what any other forward of the same drafter has to reproduce.

One row: `token_ids` [S] int64, `features` [S, n, H] as trained on, `logits` [K, S-1, V] float32. At step k, index j
predicts x[j+2+k]; entries with j+2+k >= S are padding. A file of golden probes holds several rows, as `<i>.<name>`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from tasks.verdict import BadInput

FILE = "probes.safetensors"
_NAMES = ("token_ids", "features", "logits")


@dataclass(frozen=True)
class Probe:
    """One row with the logits of the training library's own forward on the reloaded checkpoint."""

    token_ids_S: torch.Tensor
    features_SnH: torch.Tensor
    logits_KSV: torch.Tensor

    @property
    def steps(self) -> int:
        return len(self.logits_KSV)

    def valid(self, step: int) -> int:
        """How many entries of a step are no padding."""
        return max(0, len(self.token_ids_S) - 2 - step)


def write_probes(folder: Path, probes: Sequence[Probe]) -> Path:
    """Write the golden probes of a drafter's folder."""
    tensors = {
        f"{i}.{name}": tensor.contiguous()
        for i, probe in enumerate(probes)
        for name, tensor in zip(_NAMES, (probe.token_ids_S, probe.features_SnH, probe.logits_KSV), strict=True)
    }
    save_file(tensors, folder / FILE)
    return folder / FILE


def read_probes(folder: Path) -> list[Probe]:
    """The golden probes of a drafter's folder; empty where it has none. Raises BadInput for a file that holds no probes."""
    path = folder / FILE
    if not path.is_file():
        return []
    tensors = _load(path)
    count = len(tensors) // len(_NAMES)
    return [_probe(path, {name: tensors.get(f"{i}.{name}") for name in _NAMES}) for i in range(count)] or _refuse(path, "no probe")


def read_row(path: Path) -> Probe:
    """One row of `trainer_logits/`. Raises BadInput for a file that holds none."""
    tensors = _load(path)
    return _probe(path, {name: tensors.get(name) for name in _NAMES})


def _load(path: Path) -> dict[str, torch.Tensor]:
    try:
        tensors: dict[str, torch.Tensor] = load_file(path)
    except (SafetensorError, OSError) as error:
        raise BadInput(str(path), found=f"no whole safetensors file ({error})", expected="probes", do="Copy it again.") from error
    return tensors


def _probe(path: Path, tensors: dict[str, torch.Tensor | None]) -> Probe:
    tokens, features, logits = (tensors[name] for name in _NAMES)
    if tokens is None or features is None or logits is None:
        _refuse(path, f"no {', '.join(name for name in _NAMES if tensors[name] is None)}")
    length = len(tokens)
    fits = tokens.dim() == 1 and features.dim() == 3 and logits.dim() == 3 and len(features) == length and logits.shape[1] == length - 1
    if not fits or not logits.shape[0]:
        _refuse(path, f"tokens {list(tokens.shape)}, features {list(features.shape)}, logits {list(logits.shape)}")
    if tokens.dtype != torch.int64 or not features.is_floating_point() or not logits.is_floating_point():
        _refuse(path, f"tokens {tokens.dtype}, features {features.dtype}, logits {logits.dtype}")
    if int(tokens.min()) < 0 or not bool(torch.isfinite(features).all() & torch.isfinite(logits).all()):
        _refuse(path, "negative tokens, or features or logits that are no numbers")
    return Probe(tokens, features, logits)


def _refuse(path: Path, found: str) -> NoReturn:
    raise BadInput(
        str(path),
        found=found,
        expected="token_ids [S], features [S, n, H], logits [K, S-1, V]",
        do="Export the drafter again, or delete the file to go without probes.",
    )
