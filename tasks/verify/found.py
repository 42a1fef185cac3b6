"""A server that somebody else started: is as much accepted as the drafter alone says, and if not, what would explain it?

All that is known are the tokens and counts of ordinary requests. Along the served tokens the standalone drafter says how
many drafts of each round are right, wired as it was trained, and wired wrongly in each known way. In float32 the way in which
it is really served gives the very counts of every request; in lower precision only nearly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from tasks.report import Report
from tasks.verdict import Check, Outcome
from tasks.verify import static, tree
from tasks.verify.acceptance import play, right_drafts
from tasks.verify.checkpoint import read_checkpoint
from tasks.verify.drafter import load_drafter
from tasks.verify.greedy import given_text
from tasks.verify.hypotheses import Wiring, hypotheses, name_boundaries
from tasks.verify.served import Served
from tasks.wiring.boundaries import default_boundaries
from tasks.wiring.kinds import Kind
from tasks.wiring.target import TargetForward

NAME = "served acceptance"
# What to look at on the server, where the drafter itself is as it was trained.
_LOOK = {
    Kind.FEATURES: "Compare the server's version and its model code with those that the drafter was proved with.",
    Kind.VOCAB_MAP: "Compare d2t in the served folder with the checkpoint's (offsets: target id = draft id + d2t), and the token map.",
    Kind.ROPE: "Compare rope_parameters in the served config.json with the checkpoint's.",
    Kind.ARCHITECTURE_FLAGS: "Compare the norm flags in the served config.json with the checkpoint's.",
    Kind.TENSORS: "Compare the served folder's tensors with the checkpoint's, by name and by hash.",
}
# Four roundings of bfloat16 (2^-8 each), as a share of the largest logit.
_NEAR_TIE = 2**-6


@dataclass(frozen=True)
class Way:
    """One way in which the drafter could be served. `wiring` None = no draft is ever right."""

    name: str
    kind: Kind
    do: str
    wiring: Wiring | None


@dataclass(frozen=True)
class Counted:
    """What a way would have counted; `equal` requests have exactly the served counts."""

    way: Way
    verify_rounds: int
    right_drafts: int
    equal: int

    @property
    def accept_length(self) -> float:
        return 1 + self.right_drafts / self.verify_rounds


def check_found(
    checkpoint: Path,
    target: TargetForward,
    served: Sequence[Served],
    *,
    shape: tree.Shape,
    exact: bool,
    tolerance: float,
    device: str,
    report: Report,
) -> list[Check]:
    """The checkpoint's static checks, and served against predicted acceptance, explained where the two differ.

    `shape`: steps, topk and draft tokens as the server resolved them. `exact`: the server computes in float32, so that the
    counts themselves have to be equal; else the acceptances, within the share `tolerance`.
    Raises BadInput for a folder that holds no readable EAGLE-3 checkpoint.
    """
    opened = read_checkpoint(checkpoint)
    record = static.read_record(opened)
    longest = max(len(one.prompt) + len(one.answer) for one in served)
    facts = static.examine(opened, record, target.facts, longest=longest)
    if facts.boundaries is None or not facts.loadable:
        return facts.checks
    if not sum(one.verify_rounds for one in served):
        message = f"no verify round in {len(served)} answers: the server does not speculate. Look at its launch arguments."
        return [*facts.checks, Check(name=NAME, verdict=Outcome.FAIL, kind=Kind.LAUNCH_FLAGS, message=message)]
    trained = record.features.boundaries if record else facts.boundaries
    wiring = Wiring(load_drafter(opened, target.embedding(), device), tuple(trained), tuple(range(len(trained))))
    as_trained = count([Way("as trained", Kind.QUALITY, "", wiring)], target, served, shape, report)[0]
    if as_trained.equal == len(served) or (not exact and _alike(served, as_trained, tolerance)):
        return [*facts.checks, _passed(served, as_trained)]
    known = ways(wiring, target.facts.num_layers, lambda b: static.what_to_set(b, opened.architecture, target.facts))
    others = count(known, target, served, shape, report)
    others.sort(key=lambda one: (-one.equal, abs(one.accept_length - _accepted(served))))
    return [*facts.checks, _explained(served, as_trained, others, exact, tolerance)]


def ways(trained: Wiring, num_layers: int, what_to_set: Callable[[list[int]], str]) -> list[Way]:
    """Every known mis-wiring that a server can have, the drafter being trained with `trained`."""
    boundaries = list(trained.boundaries)
    found = [
        Way(
            name_boundaries(fed, boundaries, num_layers),
            Kind.LAYER_BOUNDARIES,
            f"The server feeds boundaries {fed}; the drafter was trained on {boundaries}. {what_to_set(boundaries)}",
            replace(trained, boundaries=tuple(fed)),
        )
        for fed in fed_lists(boundaries, num_layers)
    ]
    for hypothesis in hypotheses(trained, num_layers, what_to_set):
        wiring = hypothesis.change(trained)
        # Boundaries are enumerated above: there the question is what is fed, in the diagnosis what was trained.
        if hypothesis.kind is not Kind.LAYER_BOUNDARIES and not wiring.normed_last and wiring.advance == 1:
            name = hypothesis.name.removesuffix(" in training")
            found.append(Way(name, hypothesis.kind, _LOOK[hypothesis.kind], wiring))
    nothing = "Are its tensors' names those that the server looks for (its log tells what it dropped), and is the algorithm EAGLE3?"
    return [*found, Way("no draft is ever right, as with weights that were not loaded", Kind.TENSORS, nothing, None)]


def fed_lists(trained: Sequence[int], num_layers: int) -> list[list[int]]:
    """Ascending boundaries that servers are known to feed instead of `trained`; each list once."""
    count, default = len(trained), default_boundaries(num_layers)
    explicit = [boundary + 1 for boundary in default]  # the default's numbers, given as explicit ids on the llama family
    lists = [
        [boundary + 1 for boundary in trained],
        [boundary - 1 for boundary in trained],
        default,
        explicit,
        *([*trained[1:], last] for last in (default[-1], explicit[-1])),
        list(range(num_layers - count, num_layers)),
        *([boundary + by * (i == j) for j, boundary in enumerate(trained)] for i in range(count) for by in (1, -1)),
    ]
    kept: list[list[int]] = []
    for fed in lists:
        possible = len(fed) == count and fed == sorted(set(fed)) and fed[0] >= 0 and fed[-1] < num_layers
        if possible and fed != list(trained) and fed not in kept:
            kept.append(fed)
    return kept


@torch.inference_mode()
def count(tried: Sequence[Way], target: TargetForward, served: Sequence[Served], shape: tree.Shape, report: Report) -> list[Counted]:
    """What each way would have counted along the served tokens."""
    totals = [Counted(way, 0, 0, 0) for way in tried]
    boundaries = sorted({boundary for way in tried if way.wiring for boundary in way.wiring.boundaries})
    for number, one in enumerate(served, 1):
        rounds = list(_rounds(tried, target, one, boundaries, shape))
        for i, (verified, right) in enumerate(rounds):
            same = (verified, right) == (one.verify_rounds, one.right_drafts)
            so_far = totals[i]
            totals[i] = Counted(tried[i], so_far.verify_rounds + verified, so_far.right_drafts + right, so_far.equal + same)
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
        fed = replace(text, features_SnH=fed_SnH)
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


def _passed(served: Sequence[Served], as_trained: Counted) -> Check:
    return Check(name=NAME, verdict=Outcome.PASS, message=_told(served, as_trained), numbers=_numbers(served, as_trained))


def _explained(served: Sequence[Served], as_trained: Counted, others: Sequence[Counted], exact: bool, tolerance: float) -> Check:
    """`others` in the order in which they fit."""
    told, numbers = _told(served, as_trained), _numbers(served, as_trained)
    fits = [one for one in others if one.equal == len(served)]
    near = _alike(served, as_trained, tolerance)
    if near and not fits:
        message = f"{told}. They differ by less than {tolerance:.0%}, and no known mis-wiring gives the served counts: near-ties?"
        return Check(name=NAME, verdict=Outcome.WARN, kind=Kind.RUNTIME_INTERACTION, message=message, numbers=numbers)
    if not fits:
        # Where counts compare, a way that gives the counts of fewer answers than the trained one is no explanation.
        fits = [one for one in others if _alike(served, one, tolerance) and (not exact or one.equal > as_trained.equal)]
    numbers["fit"] = [{"name": one.way.name, "predicted": one.accept_length, "equal_by_count": one.equal} for one in fits]
    if fits:
        best = fits[0]
        numbers["hypothesis"] = best.way.name
        also = f" The figures cannot tell it from: {', '.join(one.way.name for one in fits[1:])}." if fits[1:] else ""
        explained = (
            f"Known mis-wiring that would give {best.accept_length:.3f}, and {best.equal} of {len(served)} answers by count: "
            f"{best.way.name}. {best.way.do}{also}"
        )
        kind = best.way.kind
    elif _accepted(served) > as_trained.accept_length:
        explained = "More is accepted than can be: is the acceptance simulated (SGLANG_SIMULATE_ACC_LEN) or its threshold lowered?"
        kind = Kind.LAUNCH_FLAGS
    else:
        explained = f"None of {len(others)} known mis-wirings would give it: are the weights served those of the checkpoint?"
        kind = Kind.TENSORS
    return Check(name=NAME, verdict=Outcome.FAIL, kind=kind, message=f"{told}. {explained}", numbers=numbers)


@torch.inference_mode()
def check_lossless(
    target: TargetForward,
    prompts: Sequence[list[int]],
    plain: Sequence[list[int]],
    again: Sequence[list[int]],
    speculative: Sequence[list[int]],
    *,
    exact: bool,
) -> Check:
    """Greedy texts of a speculative server against a plain one's, which answered twice, with the gap at each first difference.

    The gap: of the target's logits, how far the worse of both tokens is from the best. `exact`: all have to be equal.
    """
    differing = [i for i, (a, b) in enumerate(zip(plain, speculative, strict=True)) if a != b]
    restless = sum(a != b for a, b in zip(plain, again, strict=True))
    gaps = [_gap(target, prompts[i], plain[i], speculative[i]) for i in differing]
    clear = sum(gap > tie for gap, tie in gaps)
    numbers: dict[str, object] = {
        "compared": len(plain),
        "identical": len(plain) - len(differing),
        "plain_differs_from_itself": restless,
        "gaps": [gap for gap, _ in gaps],
    }
    told = f"{len(plain) - len(differing)} of {len(plain)} greedy texts are the plain server's, which differs from itself on {restless}"
    if not differing:
        return Check(name="lossless", verdict=Outcome.PASS, message=told, numbers=numbers)
    message = f"{told}; {clear} of {len(differing)} first differences are no near-ties (largest gap {max(gap for gap, _ in gaps):.3g})"
    failed = exact or clear > 0
    return Check(
        name="lossless",
        verdict=Outcome.FAIL if failed else Outcome.WARN,
        kind=Kind.GREEDY_DIVERGENCE,
        message=message,
        numbers=numbers,
    )


def _gap(target: TargetForward, prompt: list[int], one: list[int], other: list[int]) -> tuple[float, float]:
    """The gap where two answers part, and up to which it is a near-tie; infinite where one is only shorter."""
    common = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
    if common is None:
        return float("inf"), 0.0
    target.start()
    logits_V = target.extend(torch.tensor(prompt + one[:common]), [0], last_logits=1)[0][-1]
    gap = float(logits_V.max() - torch.minimum(logits_V[one[common]], logits_V[other[common]]))
    return gap, _NEAR_TIE * float(logits_V.abs().max())
