"""A server that somebody else started: is as much accepted as the drafter alone says, and if not, what would explain it?

All that is known are the tokens and counts of ordinary requests. Along the served tokens the standalone drafter says how
many drafts of each round are right, wired as it was trained, and wired wrongly in each known way. In float32 the way in which
it is really served gives the very counts of every request; in lower precision only nearly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from tasks.report import Report
from tasks.verdict import Check, Outcome
from tasks.verify import static, tree
from tasks.verify.acceptance import play, right_drafts
from tasks.verify.checkpoint import read_checkpoint
from tasks.verify.drafter import load_drafter
from tasks.verify.greedy import given_text
from tasks.verify.hypotheses import Wiring
from tasks.verify.lossless import check_own_tokens
from tasks.verify.results import Served
from tasks.verify.ways import Way, ways
from tasks.wiring.kinds import Kind
from tasks.wiring.target import TargetForward

_NAME = "served acceptance"
# So many answers tell the known mis-wirings apart; each costs a decoding per mis-wiring.
_DECIDING = 6


@dataclass(frozen=True)
class Replay:
    """How a server drafted, and how near its counts have to be: `exact`, or its acceptance within the share `tolerance`."""

    shape: tree.Shape
    exact: bool
    tolerance: float


@dataclass(frozen=True)
class Counted:
    """What a way would have counted, and which requests have exactly the served counts (`same`)."""

    way: Way
    verify_rounds: int = 0
    right_drafts: int = 0
    same: tuple[bool, ...] = ()

    @property
    def equal(self) -> int:
        return sum(self.same)

    @property
    def accept_length(self) -> float:
        return 1 + self.right_drafts / self.verify_rounds


def check_running(
    checkpoint: Path, target: TargetForward, served: Sequence[Served], *, asked: Replay, device: str, report: Report
) -> list[Check]:
    """See `tasks.verify.check_running`."""
    opened = read_checkpoint(checkpoint)
    record = static.read_record(opened)
    facts = static.examine(opened, record, target.facts, longest=max(len(one.prompt) + len(one.answer) for one in served))
    if facts.boundaries is None or not facts.loadable:
        return facts.checks
    if not sum(one.verify_rounds for one in served):
        message = f"no verify round in {len(served)} answers: the server does not speculate. Look at its launch arguments."
        return [*facts.checks, _failed(Kind.LAUNCH_FLAGS, message, {})]
    return [*facts.checks, check_own_tokens(target, served), replay(checkpoint, target, served, asked=asked, device=device, report=report)]


def replay(checkpoint: Path, target: TargetForward, served: Sequence[Served], *, asked: Replay, device: str, report: Report) -> Check:
    """See `tasks.verify.replay_served`."""
    if not sum(one.verify_rounds for one in served):
        return Check(name=_NAME, verdict=Outcome.INVALID, kind=Kind.INVALID_MEASUREMENT, message="no verify round to replay")
    opened = read_checkpoint(checkpoint)
    record = static.read_record(opened)
    fed = static.examine(opened, record, target.facts, longest=0).boundaries
    assert fed is not None, "a drafter that is served has boundaries"
    trained = record.features.boundaries if record else fed
    wiring = Wiring(load_drafter(opened, target.embedding(), device), tuple(trained), tuple(range(len(trained))))
    right = Way("as trained", Kind.QUALITY, "", wiring)
    as_trained = count([right], target, served, asked.shape, report)[0]
    if as_trained.equal == len(served) or (not asked.exact and _alike(served, as_trained, asked.tolerance)):
        return Check(name=_NAME, verdict=Outcome.PASS, message=_told(served, as_trained), numbers=_numbers(served, as_trained))
    known = ways(wiring, target.facts.num_layers, lambda b: static.what_to_set(b, opened.architecture, target.facts))
    # Where counts compare, answers that differ tell most; elsewhere a choice by them would flatter the mis-wirings.
    by_use = sorted(range(len(served)), key=lambda i: asked.exact and as_trained.same[i])
    deciding = [served[i] for i in by_use[:_DECIDING]]
    others = count(known, target, deciding, asked.shape, report)
    others.sort(key=lambda one: (-one.equal, abs(one.accept_length - _accepted(deciding))))
    return _explained(served, as_trained, deciding, others, asked)


@torch.inference_mode()
def count(tried: Sequence[Way], target: TargetForward, served: Sequence[Served], shape: tree.Shape, report: Report) -> list[Counted]:
    """What each way would have counted along the served tokens."""
    totals = [Counted(way) for way in tried]
    boundaries = sorted({boundary for way in tried if way.wiring for boundary in way.wiring.boundaries})
    for number, one in enumerate(served, 1):
        for i, (verified, right) in enumerate(list(_rounds(tried, target, one, boundaries, shape))):
            same = (verified, right) == (one.verify_rounds, one.right_drafts)
            so_far = totals[i]
            totals[i] = Counted(tried[i], so_far.verify_rounds + verified, so_far.right_drafts + right, (*so_far.same, same))
        report.progress(number, len(served), "answers followed")
    return totals


def _rounds(
    tried: Sequence[Way], target: TargetForward, one: Served, boundaries: list[int], shape: tree.Shape
) -> Iterator[tuple[int, int]]:
    """(verify rounds, right drafts) of one request in each way."""
    text = given_text(target, one.prompt, one.answer, boundaries, overrun=shape.steps)
    for way in tried:
        if way.wiring is None:
            yield max(0, text.output_tokens - 1), 0
            continue
        fed_SnH = text.features_SnH[:, [boundaries.index(way.wiring.boundaries[i]) for i in way.wiring.order]].roll(way.wiring.late, 0)
        fed = text.with_features(fed_SnH)
        drafter = way.wiring.drafter
        right = right_drafts(drafter, fed, shape.steps) if shape.topk == 1 else tree.right_drafts(drafter, fed, shape)[0]
        played = play(right, text.output_tokens, shape.steps)
        yield played.verify_rounds, sum(number * rounds for number, rounds in enumerate(played.histogram))


def _accepted(served: Sequence[Served]) -> float:
    return 1 + sum(one.right_drafts for one in served) / sum(one.verify_rounds for one in served)


def _alike(served: Sequence[Served], counted: Counted, tolerance: float) -> bool:
    return abs(_accepted(served) / counted.accept_length - 1) <= tolerance


def _numbers(served: Sequence[Served], counted: Counted) -> dict[str, object]:
    return {
        "served": _accepted(served),
        "predicted": counted.accept_length,
        "verify_rounds": sum(one.verify_rounds for one in served),
        "predicted_rounds": counted.verify_rounds,
        "answers": len(served),
        "equal_by_count": counted.equal,
    }


def _told(served: Sequence[Served], counted: Counted) -> str:
    return (
        f"served acceptance {_accepted(served):.3f}, predicted {counted.accept_length:.3f} along the served tokens; "
        f"{counted.equal} of {len(served)} answers equal by count"
    )


def _explained(
    served: Sequence[Served], as_trained: Counted, deciding: Sequence[Served], others: Sequence[Counted], asked: Replay
) -> Check:
    """`others`: what each known mis-wiring would have counted on the `deciding` answers, in the order in which they fit."""
    told, numbers = _told(served, as_trained), _numbers(served, as_trained)
    fits = [one for one in others if one.equal == len(deciding)]
    if not fits and _alike(served, as_trained, asked.tolerance):
        message = f"{told}. They differ by less than {asked.tolerance:.0%}, and no known mis-wiring gives the served counts: near-ties?"
        return Check(name=_NAME, verdict=Outcome.WARN, kind=Kind.RUNTIME_INTERACTION, message=message, numbers=numbers)
    if not fits:
        # Where counts compare, a way that gives those of no answer is no explanation.
        fits = [one for one in others if _alike(deciding, one, asked.tolerance) and (one.equal > 0 or not asked.exact)]
    numbers["fit"] = [{"name": one.way.name, "predicted": one.accept_length, "equal_by_count": one.equal} for one in fits]
    numbers["deciding"] = len(deciding)
    if fits:
        numbers["hypothesis"] = fits[0].way.name
        return _failed(fits[0].way.kind, f"{told}. {_named(fits, len(deciding))}", numbers)
    if _accepted(served) > as_trained.accept_length:
        more = "More is accepted than can be: is the acceptance simulated (SGLANG_SIMULATE_ACC_LEN) or its threshold lowered?"
        return _failed(Kind.LAUNCH_FLAGS, f"{told}. {more}", numbers)
    less = f"None of {len(others)} known mis-wirings would give it: are the weights served those of the checkpoint?"
    return _failed(Kind.TENSORS, f"{told}. {less}", numbers)


def _named(fits: Sequence[Counted], answers: int) -> str:
    best = fits[0]
    also = f" The figures cannot tell it from: {', '.join(one.way.name for one in fits[1:])}." if fits[1:] else ""
    return (
        f"Known mis-wiring that would give the counts of {best.equal} of {answers} of them (acceptance {best.accept_length:.3f}): "
        f"{best.way.name}. {best.way.do}{also}"
    )


def _failed(kind: Kind, message: str, numbers: dict[str, object]) -> Check:
    return Check(name=_NAME, verdict=Outcome.FAIL, kind=kind, message=message, numbers=numbers)
