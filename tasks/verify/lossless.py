"""Greedy texts of a speculative server against a plain one's: where two part, the target has to be nearly undecided."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tasks.verdict import Check, Outcome
from tasks.verify.results import Served, Texts
from tasks.wiring.kinds import Kind
from tasks.wiring.target import TargetForward

# Four roundings of bfloat16 (2^-8 each), as a share of the largest logit.
_NEAR_TIE = 2**-6


@torch.inference_mode()
def check_lossless(target: TargetForward, texts: Sequence[Texts], *, restless: int, exact: bool) -> Check:
    """See `tasks.verify.check_lossless`."""
    differing = [one for one in texts if one.plain != one.speculative]
    same = len(texts) - len(differing)
    gaps = [_gap(target, one) for one in differing]
    clear = sum(gap > tie for gap, tie in gaps)
    numbers: dict[str, object] = {
        "compared": len(texts),
        "identical": same,
        "plain_differs_from_itself": restless,
        "gaps": [gap for gap, _ in gaps],
    }
    told = f"{same} of {len(texts)} greedy texts are the plain server's, which differs from itself on {restless}"
    if not differing:
        return Check(name="lossless", verdict=Outcome.PASS, message=told, numbers=numbers)
    largest = max(gap for gap, _ in gaps)
    return Check(
        name="lossless",
        verdict=Outcome.FAIL if exact or clear else Outcome.WARN,
        kind=Kind.GREEDY_DIVERGENCE,
        message=f"{told}; {clear} of {len(differing)} first differences are no near-ties (largest gap of logits {largest:.3g})",
        numbers=numbers,
    )


@torch.inference_mode()
def check_own_tokens(target: TargetForward, served: Sequence[Served]) -> Check:
    """Every token of a greedy answer is the one that the target prefers after those before it, or nearly.

    Whatever makes a server accept drafts that are not right (a lowered threshold, a simulated acceptance) shows here, since the
    counts of its rounds follow from the tokens that it gave.
    """
    tokens = wrong = 0
    largest = 0.0
    for one in served:
        if not one.answer:
            continue
        target.start()
        logits_TV = target.extend(torch.tensor(one.prompt + one.answer[:-1]), [0], last_logits=len(one.answer))[0]
        gaps_T = logits_TV.max(-1).values - logits_TV.gather(-1, torch.tensor(one.answer, device=logits_TV.device)[:, None])[:, 0]
        tokens += len(one.answer)
        wrong += int((gaps_T > _NEAR_TIE * logits_TV.abs().max(-1).values).sum())
        largest = max(largest, float(gaps_T.max()))
    numbers: dict[str, object] = {"tokens": tokens, "wrong": wrong, "largest_gap": largest}
    told = (
        f"{tokens - wrong} of {tokens} served tokens are the target's own greedy ones, or near-ties (largest gap of logits {largest:.3g})"
    )
    if not wrong:
        return Check(name="target's own tokens", verdict=Outcome.PASS, message=told, numbers=numbers)
    do = "is it another target, does the server sample, or are drafts accepted that are not right (SGLANG_SIMULATE_ACC_LEN, a threshold)?"
    return Check(name="target's own tokens", verdict=Outcome.FAIL, kind=Kind.GREEDY_DIVERGENCE, message=f"{told}: {do}", numbers=numbers)


def _gap(target: TargetForward, texts: Texts) -> tuple[float, float]:
    """How far the worse of the two tokens is from the target's best where the texts part, and up to where that is a near-tie.

    Infinite where one text only ends sooner.
    """
    both = zip(texts.plain, texts.speculative, strict=False)
    common = next((i for i, (a, b) in enumerate(both) if a != b), None)
    if common is None:
        return float("inf"), 0.0
    target.start()
    logits_V = target.extend(torch.tensor(texts.prompt + texts.plain[:common]), [0], last_logits=1)[0][-1]
    worse = torch.minimum(logits_V[texts.plain[common]], logits_V[texts.speculative[common]])
    return float(logits_V.max() - worse), _NEAR_TIE * float(logits_V.abs().max())
