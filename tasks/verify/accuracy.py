"""Held-out accuracy per draft step, from raw counts, in both definitions of `design.md`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tasks.products import StepCounts
from tasks.statistics import Interval, ratio_of_sums
from tasks.verdict import Check, Outcome
from tasks.verify.drafter import Drafter
from tasks.verify.results import HeldOut, StepAccuracy
from tasks.wiring.kinds import Kind
from tasks.wiring.target import TargetForward

# Rows of target logits held at once: 512 of a vocabulary of 128k in float32 are 260 MB.
_ROWS = 512


@dataclass(frozen=True)
class Counts:
    """One conversation: lists over the steps; `outside` of `labels` target tokens cannot be drafted."""

    positions: list[int]
    right: list[int]
    right_full: list[int]
    near_ties: list[int]
    labels: int
    outside: int


@dataclass(frozen=True)
class _Labels:
    """What the target says at each position that is supervised [S]: its own best token, and its best draft token."""

    supervised: torch.Tensor
    own: torch.Tensor
    drafted: torch.Tensor
    close: torch.Tensor


@torch.inference_mode()
def count(
    drafter: Drafter, target: TargetForward, item: HeldOut, features_SnH: torch.Tensor, last_SH: torch.Tensor, steps: int, tie: float
) -> Counts:
    """Counts of one conversation, as the trainer counts (speculators 0.9.0, eagle3/metrics.py and models/metrics.py).

    A label at i is what the target says after token i. Step k of index j answers for label j+1+k; it is right when
    steps 0..k are, and it counts where both its own label and that of step 0 are supervised. The first `steps`
    tokens of a conversation are never supervised, since packing shifts across the borders of conversations.
    A position is a near-tie where a shift of logits by `tie` could change one of the answers that count.
    """
    labels = _labels(drafter, target, item, last_SH, steps, tie)
    length = len(item.tokens)
    right = labels.supervised[1:].clone()
    right_full, unsure = right.clone(), torch.zeros_like(right)
    counts = Counts([], [], [], [], int(labels.supervised.sum()), int((labels.supervised & ~_can_draft(drafter, labels.own)).sum()))
    tokens = torch.tensor(item.tokens)
    for k, final in enumerate(drafter.unroll(tokens[None], features_SnH[None], steps)):
        valid = max(0, length - 1 - k)
        answer, gap = _best(drafter.logits(final[0, :valid]).cpu())
        close = (gap < 2 * tie) | labels.close[1 + k :]
        counted = labels.supervised[1 + k :]
        right = right[:valid] & (answer == labels.drafted[1 + k :])
        right_full = right_full[:valid] & (drafter.target_ids_V.cpu()[answer] == labels.own[1 + k :])
        unsure = unsure[:valid] | close
        counts.positions.append(int(counted.sum()))
        counts.right.append(int((right & counted).sum()))
        counts.right_full.append(int((right_full & counted).sum()))
        counts.near_ties.append(int((unsure & counted).sum()))
    return counts


def _labels(drafter: Drafter, target: TargetForward, item: HeldOut, last_SH: torch.Tensor, steps: int, tie: float) -> _Labels:
    length = len(item.tokens)
    supervised = torch.zeros(length, dtype=torch.bool)
    for start, stop in item.spans:
        supervised[start:stop] = True
    supervised[:steps] = False
    own, drafted, close = torch.full((length,), -1), torch.full((length,), -1), torch.zeros(length, dtype=torch.bool)
    ids = drafter.target_ids_V.cpu()
    for rows in supervised.nonzero().flatten().split(_ROWS):
        logits = target.head(last_SH[rows]).cpu()
        own[rows] = logits.argmax(-1)
        drafted[rows], gap = _best(logits[:, ids])
        close[rows] = gap < 2 * tie
    return _Labels(supervised, own, drafted, close)


def _best(logits_PV: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The best index of each row, and by how much it is ahead of the second best; infinitely where there is no second."""
    values, indices = logits_PV.topk(min(2, logits_PV.shape[-1]), -1)
    ahead = values[:, 0] - values[:, 1] if values.shape[1] > 1 else torch.full_like(values[:, 0], torch.inf)
    return indices[:, 0], ahead


def _can_draft(drafter: Drafter, tokens: torch.Tensor) -> torch.Tensor:
    return torch.isin(tokens, drafter.target_ids_V.cpu())


def total(conversations: Sequence[Counts]) -> tuple[list[StepAccuracy], Interval]:
    """The steps, with intervals over conversations; and the share of target tokens outside of the draft vocabulary.

    Raises ValueError without a supervised position.
    """
    used = [counts for counts in conversations if counts.labels]
    steps = []
    for k in range(len(used[0].positions) if used else 0):
        positions = [counts.positions[k] for counts in used]
        steps.append(
            StepAccuracy(
                step=k,
                positions=sum(positions),
                right=sum(counts.right[k] for counts in used),
                right_full=sum(counts.right_full[k] for counts in used),
                near_ties=sum(counts.near_ties[k] for counts in used),
                accuracy=ratio_of_sums([counts.right[k] for counts in used], positions),
                accuracy_full=ratio_of_sums([counts.right_full[k] for counts in used], positions),
            )
        )
    return steps, ratio_of_sums([counts.outside for counts in used], [counts.labels for counts in used])


def judge(steps: Sequence[StepAccuracy], trainer: Sequence[StepCounts]) -> Check:
    """The trainer's own counts are these, up to one for each near-tie: at any other position both must say the same."""
    compared = list(zip(steps, trainer, strict=False))
    wrong = [
        f"step {ours.step}: {ours.right} right of {ours.positions}, the trainer counted {theirs.right} of {theirs.positions}"
        for ours, theirs in compared
        if ours.positions != theirs.positions or abs(ours.right - theirs.right) > ours.near_ties
    ]
    numbers = {
        "right": [step.right for step in steps],
        "trainer_right": [step.right for step in trainer],
        "positions": [step.positions for step in steps],
        "trainer_positions": [step.positions for step in trainer],
        "near_ties": [step.near_ties for step in steps],
    }
    if len(compared) != len(trainer) or not compared:
        message = f"{len(compared)} steps could be compared with the trainer's {len(trainer)}"
        return Check(name="accuracy", verdict=Outcome.INVALID, kind=Kind.INVALID_MEASUREMENT, message=message, numbers=numbers)
    if wrong:
        message = f"Held-out accuracy is not the trainer's: {'; '.join(wrong)}. Compare the held-out rows and their labels."
        return Check(name="accuracy", verdict=Outcome.FAIL, kind=Kind.TEACHER_TARGETS, message=message, numbers=numbers)
    message = f"right at steps 0, 1, …, as the trainer counted: {', '.join(f'{step.right} of {step.positions}' for step in steps)}"
    return Check(name="accuracy", verdict=Outcome.PASS, message=message, numbers=numbers)
