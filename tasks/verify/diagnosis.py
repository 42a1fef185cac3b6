"""Which known mis-wiring fits the numbers: by the trainer's logits where there are any, else by likelihood.

With logits the right hypothesis makes the difference vanish, so one row decides. Without, each hypothesis is scored
by the mean log-likelihood of the target's tokens, and compared with the declared wiring by a paired test over
conversations; what cannot be told apart from the best one is named with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy import stats
from torch.nn.utils.rnn import pad_sequence

from tasks.report import Report
from tasks.verdict import Check, Outcome
from tasks.verify import static
from tasks.verify.drafter import Drafter
from tasks.verify.features import Features
from tasks.verify.hypotheses import Hypothesis, Wiring, hypotheses
from tasks.verify.results import Diagnosis, HeldOut, HypothesisResult
from tasks.wiring.kinds import Kind
from tasks.wiring.probes import Probe

# A subsample that decides in two minutes on two cores for a 135M target.
_CONVERSATIONS, _TOKENS, _STEPS = 16, 192, 3
# A wiring has to gain so many nats per token to be a fault, and be this unlikely to do so by chance, after
# Bonferroni's correction. Measured: a wrong RoPE theta can gain a few thousandths by luck (`facts/speculators.md`).
_GAIN, _CHANCE, _APART = 0.02, 0.01, 0.05
# A corrected p below which a gain that decides nothing is still worth a warning.
_DOUBT = 0.5
# Part of a likelihood that is spread evenly: a token that cannot be drafted costs a bounded amount.
_EVEN = 0.01
# Features computed anew differ from stored ones by bfloat16's rounding; logits then differ by well under this share
# of their spread, and by more than it under any known mis-wiring.
_ROUNDING = 0.2


@dataclass(frozen=True)
class _Row:
    """One conversation with its features at all boundaries [S, L+1, H], and the last state after the final norm [S, H]."""

    tokens_S: torch.Tensor
    supervised_S: torch.Tensor
    everywhere_SLH: torch.Tensor
    normed_SH: torch.Tensor


@torch.inference_mode()
def diagnose(
    drafter: Drafter, features: Features, probes: Sequence[Probe], rows: Sequence[HeldOut], *, bound: float, report: Report
) -> Diagnosis:
    """Try every hypothesis on a subsample. Says so when none fits."""
    declared = Wiring(drafter, tuple(features.fed), tuple(range(len(features.fed))))
    facts = features.target.facts
    tried = hypotheses(declared, facts.num_layers, lambda b: static.what_to_set(b, drafter.architecture, facts))
    if probes:
        return _by_logits(declared, tried, features, probes[0], bound, report)
    return _by_likelihood(declared, tried, features, rows[:_CONVERSATIONS], report)


def explain(checks: Sequence[Check], found: Diagnosis) -> list[Check]:
    """The checks, with the diagnosis as one of them, and its kind and message on the links that broke without a name.

    Weights that are not the exported ones have broken without one too: the diagnosis may say what was done to them.
    """
    best = found.hypotheses[0] if found.named else None
    kind = best.kind if best else Kind.TENSORS
    named = [
        check.model_copy(
            update={
                "kind": kind,
                "message": f"{check.message} {found.message}",
                "numbers": {**check.numbers, **({"hypothesis": found.hypothesis} if found.hypothesis else {})},
            }
        )
        if check.verdict is Outcome.FAIL and (check.kind is None or check.name == static.WEIGHTS)
        else check
        for check in checks
    ]
    return named if any(check.verdict is Outcome.FAIL for check in checks) else [*named, _as_check(found)]


def _as_check(found: Diagnosis) -> Check:
    """What the diagnosis says where nothing else has failed: without logits it is the only judge of the wiring."""
    best = found.hypotheses[0] if found.hypotheses else None
    numbers = {"method": found.method, "named": found.named, "conversations": found.conversations, "positions": found.positions}
    if best is None:
        return Check(name="diagnosis", verdict=Outcome.INVALID, kind=Kind.INVALID_MEASUREMENT, message=found.message, numbers=numbers)
    numbers |= {"best": best.name, "score": best.score, "p_value": best.p_value}
    if found.named:
        return Check(name="diagnosis", verdict=Outcome.FAIL, kind=best.kind, message=found.message, numbers=numbers)
    if best.score >= _GAIN and best.p_value is not None and best.p_value < _DOUBT:
        message = (
            f"{found.conversations} conversations cannot rule out this mis-wiring: {best.name} (the target's tokens become more likely by "
            f"{best.score:.3f} nats each, p = {best.p_value:.2g}). {best.do} Give more prompts, or the trainer's logits, to be sure."
        )
        return Check(name="diagnosis", verdict=Outcome.WARN, kind=best.kind, message=message, numbers=numbers)
    message = (
        f"none of {len(found.hypotheses)} known mis-wirings makes the target's tokens more likely than the declared wiring by {_GAIN} "
        "nats. Without golden probes or the trainer's logits no more can be known: not a mis-wiring that costs less, nor whose training "
        "the weights are of"
    )
    return Check(name="diagnosis", verdict=Outcome.PASS, message=message, numbers=numbers)


def _by_logits(declared: Wiring, tried: Sequence[Hypothesis], features: Features, probe: Probe, bound: float, report: Report) -> Diagnosis:
    row = _computed(probe.token_ids_S, torch.ones(len(probe.token_ids_S), dtype=torch.bool), features)
    results = []
    for i, hypothesis in enumerate(tried):
        wiring = hypothesis.change(declared)
        if hypothesis.kind is Kind.VOCAB_MAP:
            continue  # Draft logits know nothing of target ids.
        stored = wiring.boundaries == declared.boundaries and not wiring.normed_last
        fed = _arranged(probe.features_SnH.float(), wiring) if stored else _fed(row, wiring)
        difference = _difference(wiring, probe, fed)
        allowed = bound if stored else _ROUNDING * float(probe.logits_KPV.std())
        results.append(
            HypothesisResult(name=hypothesis.name, kind=hypothesis.kind, score=difference, fits=difference <= allowed, do=hypothesis.do)
        )
        report.progress(i + 1, len(tried), "hypotheses")
    results.sort(key=lambda result: (not result.fits, result.score))
    named = [result.name for result in results if result.fits]
    return Diagnosis(
        method="logits",
        positions=len(probe.positions_P),
        conversations=1,
        hypotheses=results,
        named=named,
        message=_message(results, named, "the largest logit difference falls to {score:.2g}"),
    )


def _difference(wiring: Wiring, probe: Probe, fed_SnH: torch.Tensor) -> float:
    steps, positions = len(probe.logits_KPV), probe.positions_P
    unrolled = wiring.drafter.unroll(probe.token_ids_S[None], fed_SnH[None], steps, advance=wiring.advance)
    differences = [
        float((wiring.drafter.logits(final[0, positions]) - probe.logits_KPV[k].to(final)).abs().max()) for k, final in enumerate(unrolled)
    ]
    return max(differences)


def _by_likelihood(
    declared: Wiring, tried: Sequence[Hypothesis], features: Features, items: Sequence[HeldOut], report: Report
) -> Diagnosis:
    rows = [row for item in items if (row := _row(item, features)) is not None]
    if len(rows) < 2:
        message = f"{len(rows)} conversations are too few to compare wirings on. Give prompts, or the trainer's logits."
        return Diagnosis(method="likelihood", positions=0, conversations=len(rows), hypotheses=[], named=[], message=message)
    base = _likelihoods(declared, rows)
    scored: list[tuple[HypothesisResult, np.ndarray]] = []
    for i, hypothesis in enumerate(tried):
        gains = _likelihoods(hypothesis.change(declared), rows) - base
        chance = min(1.0, _chance(gains) * len(tried))
        fits = float(gains.mean()) >= _GAIN and chance <= _CHANCE
        result = HypothesisResult(
            name=hypothesis.name, kind=hypothesis.kind, score=float(gains.mean()), p_value=chance, fits=fits, do=hypothesis.do
        )
        scored.append((result, gains))
        report.progress(i + 1, len(tried), "hypotheses")
    scored.sort(key=lambda entry: (not entry[0].fits, -entry[0].score))
    best = scored[0][1]
    named = [result.name for result, gains in scored if result.fits and _chance(best - gains) > _APART]
    results = [result for result, _ in scored]
    return Diagnosis(
        method="likelihood",
        positions=sum(int(row.supervised_S.sum()) for row in rows),
        conversations=len(rows),
        hypotheses=results,
        named=named,
        message=_message(results, named, "the target's tokens become more likely by {score:.3f} nats each"),
    )


def _message(results: Sequence[HypothesisResult], named: Sequence[str], evidence: str) -> str:
    if not named:
        return f"None of {len(results)} known mis-wirings fits: the weights or the data are others than those it was trained with."
    best = results[0]
    also = f" The data cannot tell it from: {', '.join(named[1:])}." if len(named) > 1 else ""
    return f"Known mis-wiring that fits: {best.name} ({evidence.format(score=best.score)}). {best.do}{also}"


def _chance(differences: np.ndarray) -> float:
    """One-sided p of a mean at or below zero; equal differences that are no zeros leave no doubt."""
    if float(differences.std()) == 0.0:
        return 0.0 if float(differences.mean()) > 0 else 1.0
    return float(stats.ttest_1samp(differences, 0.0, alternative="greater").pvalue)


def _row(item: HeldOut, features: Features) -> _Row | None:
    tokens = item.tokens[:_TOKENS]
    supervised = torch.zeros(len(tokens), dtype=torch.bool)
    for start, stop in item.spans:
        supervised[start:stop] = True
    supervised[: _STEPS + 1] = False
    if not bool(supervised.any()):
        return None
    return _computed(torch.tensor(tokens), supervised, features)


def _computed(tokens_S: torch.Tensor, supervised_S: torch.Tensor, features: Features) -> _Row:
    everywhere = features.at(tokens_S.tolist(), range(features.target.facts.num_layers + 1))
    return _Row(tokens_S, supervised_S, everywhere, features.target.norm(everywhere[:, -1]))


def _fed(row: _Row, wiring: Wiring) -> torch.Tensor:
    fed_SnH = row.everywhere_SLH[:, list(wiring.boundaries)]
    if wiring.normed_last:
        fed_SnH[:, -1] = row.normed_SH
    return _arranged(fed_SnH, wiring)


def _arranged(features_SnH: torch.Tensor, wiring: Wiring) -> torch.Tensor:
    ordered = features_SnH[:, list(wiring.order)]
    return ordered.roll(wiring.late, 0) if wiring.late else ordered


def _likelihoods(wiring: Wiring, rows: Sequence[_Row]) -> np.ndarray:
    """Mean log-likelihood of the supervised tokens over all steps, per conversation."""
    vocabulary = len(wiring.drafter.embedding)
    to_draft = torch.full((vocabulary,), -1)
    ids = wiring.drafter.target_ids_V.cpu()
    kept = (ids >= 0) & (ids < vocabulary)
    to_draft[ids[kept]] = torch.arange(len(ids))[kept]
    tokens_BS = pad_sequence([row.tokens_S for row in rows], batch_first=True)
    fed_BSnH = pad_sequence([_fed(row, wiring) for row in rows], batch_first=True)
    supervised_BS = pad_sequence([row.supervised_S for row in rows], batch_first=True)
    total_B, count_B = torch.zeros(len(rows)), torch.zeros(len(rows))
    for k, final in enumerate(wiring.drafter.unroll(tokens_BS, fed_BSnH, _STEPS, advance=wiring.advance)):
        row, place = supervised_BS[:, 2 + k :].nonzero(as_tuple=True)
        wanted = to_draft[tokens_BS[row, place + 2 + k]]
        shares = wiring.drafter.logits(final[row, place]).softmax(-1).cpu()
        said = shares.gather(1, wanted.clamp(min=0)[:, None])[:, 0] * (wanted >= 0)
        total_B.index_add_(0, row, ((1 - _EVEN) * said + _EVEN / vocabulary).log())
        count_B.index_add_(0, row, torch.ones(len(row)))
    means: np.ndarray = (total_B / count_B.clamp(min=1)).double().numpy()
    return means
