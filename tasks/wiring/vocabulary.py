"""The map from draft vocabulary to target vocabulary: `d2t` holds offsets, target id = draft id + d2t[draft id]."""

from __future__ import annotations

import hashlib

import torch

from tasks.verdict import Check, Outcome
from tasks.wiring.kinds import Kind
from tasks.wiring.record import VocabMap


def target_ids(d2t_D: torch.Tensor) -> torch.Tensor:
    """Target ids of the draft ids, [D] int64, from offsets."""
    return torch.arange(len(d2t_D), dtype=torch.int64) + d2t_D.to(torch.int64)


def offsets(target_ids_D: torch.Tensor) -> torch.Tensor:
    """`d2t` for target ids in draft order, [D] int64."""
    return target_ids_D.to(torch.int64) - torch.arange(len(target_ids_D), dtype=torch.int64)


def vocab_map(d2t_D: torch.Tensor | None, target_size: int) -> VocabMap:
    """The map's entry in the wiring record; without `d2t` the draft vocabulary is the target's."""
    ids_D = torch.arange(target_size) if d2t_D is None else target_ids(d2t_D)
    return VocabMap(draft_size=len(ids_D), target_size=target_size, sha256=hash_of(ids_D))


def hash_of(target_ids_D: torch.Tensor) -> str:
    """Hex SHA-256 over the int64 target ids, little-endian, in draft order."""
    return hashlib.sha256(target_ids_D.to(torch.int64).contiguous().cpu().numpy().astype("<i8").tobytes()).hexdigest()


def check_map(d2t_D: torch.Tensor, *, target_size: int, t2d_V: torch.Tensor | None = None) -> Check:
    """One check of `d2t`: integers, strictly increasing target ids, in range, the very set that `t2d` marks (bool, [V])."""
    numbers = {"draft_size": d2t_D.numel(), "target_size": target_size}
    complaint = _complaint(d2t_D, target_size, t2d_V)
    if complaint:
        return Check(name="vocabulary map", verdict=Outcome.FAIL, kind=Kind.VOCAB_MAP, message=complaint, numbers=numbers)
    return Check(
        name="vocabulary map",
        verdict=Outcome.PASS,
        message=f"d2t maps {d2t_D.numel()} draft ids to strictly increasing target ids below {target_size}",
        numbers=numbers,
    )


def _complaint(d2t_D: torch.Tensor, target_size: int, t2d_V: torch.Tensor | None) -> str | None:
    if d2t_D.ndim != 1 or not d2t_D.numel() or d2t_D.dtype not in (torch.int64, torch.int32):
        return f"d2t is {tuple(d2t_D.shape)} {d2t_D.dtype}: expected one integer offset per draft id. Export the drafter again."
    if t2d_V is not None and t2d_V.shape != (target_size,):
        return f"t2d has shape {tuple(t2d_V.shape)} for a vocabulary of {target_size}. The map is not this target's: train again."
    ids_D = target_ids(d2t_D)
    valid = _rises_within(ids_D, target_size)
    if valid and (t2d_V is None or torch.equal(t2d_V.nonzero().flatten(), ids_D)):
        return None
    if _looks_like_ids(d2t_D.long(), target_size, t2d_V, valid):
        return "d2t holds target ids; SGLang reads offsets and would add the draft id again. Store id - draft id."
    if not valid:
        return (
            f"draft id + d2t spans {int(ids_D.min())}..{int(ids_D.max())} in a vocabulary of {target_size} and does not increase at "
            f"{int((ids_D.diff() <= 0).sum())} places; expected strictly increasing target ids in range. Export the drafter again."
        )
    assert t2d_V is not None
    marked, common = int(t2d_V.sum()), int(t2d_V[ids_D].sum())
    return f"d2t and t2d disagree: {common} of {len(ids_D)} target ids are among the {marked} that t2d marks. Train again."


def _rises_within(ids_D: torch.Tensor, target_size: int) -> bool:
    return bool((ids_D.diff() > 0).all()) and int(ids_D[0]) >= 0 and int(ids_D[-1]) < target_size


def _looks_like_ids(d2t_D: torch.Tensor, target_size: int, t2d_V: torch.Tensor | None, valid: bool) -> bool:
    """The ids that `t2d` marks; without it, ids in order that make no valid offsets (rising offsets can be right)."""
    if t2d_V is not None:
        return bool(torch.equal(t2d_V.nonzero().flatten(), d2t_D))
    return not valid and _rises_within(d2t_D, target_size)
