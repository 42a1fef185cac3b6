"""Golden probes, `probes.safetensors`: what the trainer itself computed on a few held-out rows, carried with the weights.

With them any environment can check, without training data, that the drafter it runs is the drafter that was trained.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from tasks.verdict import BadInput

FILE = "probes.safetensors"
_FORMAT = "draftproof-probes-1"
_LARGEST = 256 << 20
PADDING = -1


@dataclass(frozen=True)
class Probe:
    """One row. Shapes: S tokens, n features, H hidden size, K draft steps, P positions, V draft vocabulary.

    At step k, index j took tokens j+1+k and before, and predicts token j+2+k.
    """

    token_ids_S: torch.Tensor
    """int64."""
    features_SnH: torch.Tensor
    """As the drafter was trained on them, in boundary order."""
    positions_P: torch.Tensor
    """int64: the indices j that `logits_KPV` holds, each one no padding at any step."""
    logits_KPV: torch.Tensor
    """float32: the trainer's logits at every step."""
    argmax_KS: torch.Tensor
    """int64 [K, S-1]: the trainer's draft token at every index and step, PADDING where nothing is predicted."""


_DTYPES = {
    "token_ids_S": (torch.int64,),
    "features_SnH": (torch.bfloat16, torch.float32),
    "positions_P": (torch.int64,),
    "logits_KPV": (torch.float32,),
    "argmax_KS": (torch.int64,),
}


def write_probes(folder: Path, probes: list[Probe]) -> None:
    """Write `probes.safetensors`; the same probes give the same bytes."""
    tensors = {f"{row}.{name}": getattr(probe, name).contiguous() for row, probe in enumerate(probes) for name in _DTYPES}
    # One key only: safetensors 0.8 writes several in any order.
    save_file(tensors, folder / FILE, metadata={"draftproof": json.dumps({"format": _FORMAT, "rows": len(probes)})})


def read_probes(folder: Path) -> list[Probe] | None:
    """The probes of a drafter's folder; None where it has none.

    Raises BadInput for a file that is no such file: cut short, too large, of another format or with shapes that
    do not belong together.
    """
    path = folder / FILE
    if not path.is_file():
        return None
    if path.stat().st_size > _LARGEST:
        raise _unreadable(path, f"{path.stat().st_size:,} bytes")
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {}).get("draftproof", "{}"))
            names = set(file.keys())
            tensors = {name: file.get_tensor(name) for name in sorted(names)}
    except (SafetensorError, OSError, ValueError, RecursionError) as error:
        raise _unreadable(path, str(error)) from error
    rows = about.get("rows") if isinstance(about, dict) and about.get("format") == _FORMAT else None
    if not isinstance(rows, int) or not rows > 0 or names != {f"{row}.{name}" for row in range(rows) for name in _DTYPES}:
        raise _unreadable(path, f"format {about} with {len(names)} tensors")
    return [_checked(path, {name: tensors[f"{row}.{name}"] for name in _DTYPES}) for row in range(rows)]


def _checked(path: Path, tensors: dict[str, torch.Tensor]) -> Probe:
    probe = Probe(**tensors)
    ranks = {name: tensor.dim() for name, tensor in tensors.items()}
    if ranks != {"token_ids_S": 1, "features_SnH": 3, "positions_P": 1, "logits_KPV": 3, "argmax_KS": 2}:
        raise _unreadable(path, f"ranks {ranks}")
    wrong = [name for name, dtypes in _DTYPES.items() if tensors[name].dtype not in dtypes]
    length, steps = len(probe.token_ids_S), len(probe.logits_KPV)
    shapes_fit = (
        len(probe.features_SnH) == length
        and probe.logits_KPV.shape[1] == len(probe.positions_P) > 0
        and tuple(probe.argmax_KS.shape) == (steps, length - 1)
        and steps > 0
    )
    if wrong or not shapes_fit:
        raise _unreadable(path, f"dtypes wrong in {wrong}" if wrong else f"shapes { {n: tuple(t.shape) for n, t in tensors.items()} }")
    if int(probe.positions_P.min()) < 0 or int(probe.positions_P.max()) + 1 + steps >= length:
        raise _unreadable(path, f"positions up to {int(probe.positions_P.max())} in {length} tokens")
    if not bool(torch.isfinite(probe.logits_KPV).all() and torch.isfinite(probe.features_SnH).all()):
        raise _unreadable(path, "values that are no numbers")
    return probe


def make_probe(token_ids_S: torch.Tensor, features_SnH: torch.Tensor, logits_KSV: torch.Tensor, *, tokens: int, logits_bytes: int) -> Probe:
    """The first `tokens` tokens of a row as a probe, its logits thinned out evenly to at most `logits_bytes`.

    `logits_KSV`: the trainer's, [K, S-1, V]. Every step is kept at every kept position. The forward is causal, so a
    cut row has the logits of the whole one. Raises ValueError for fewer than K+2 tokens.
    """
    steps, _, draft_size = logits_KSV.shape
    length = min(tokens, len(token_ids_S))
    usable = length - 1 - steps  # index j is no padding at the last step k = K-1 while j + 2 + k < S
    if usable < 1:
        raise ValueError(f"{length} tokens hold no position with {steps} draft steps")
    kept = max(1, logits_bytes // (4 * steps * draft_size))
    positions_P = torch.arange(0, usable, -(-usable // kept))
    argmax_KS = logits_KSV[:, : length - 1].argmax(-1)
    for k in range(steps):
        argmax_KS[k, max(0, length - 2 - k) :] = PADDING
    exact = torch.equal(features_SnH.bfloat16().to(features_SnH.dtype), features_SnH)
    return Probe(
        token_ids_S=token_ids_S[:length].long(),
        features_SnH=features_SnH[:length].bfloat16() if exact else features_SnH[:length].float(),
        positions_P=positions_P,
        logits_KPV=logits_KSV[:, positions_P].float(),
        argmax_KS=argmax_KS,
    )


def _unreadable(path: Path, found: Any) -> BadInput:
    return BadInput(str(path), found=found, expected="golden probes as export writes them", do="Export the drafter again.")
