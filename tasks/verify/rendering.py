"""A verification as text that a person reads: markdown, with the checks, the numbers and the hypotheses as tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tasks.statistics import Interval
from tasks.verify.results import Diagnosis, Verification

# Of the hypotheses, worst ones tell nothing.
_HYPOTHESES = 12


def render(found: Verification) -> str:
    """The whole report, in markdown."""
    verdict = found.verdict
    title = f"# {verdict.verdict}" + (f" · {verdict.kind}" if verdict.kind else "")
    parts = [title, verdict.message]
    if verdict.hypothesis:
        parts.append(f"Mis-wiring: **{verdict.hypothesis}**")
    parts.append("## Checks")
    parts.append(_table(["check", "verdict", "what was compared"], ([c.name, c.verdict.value, c.message] for c in verdict.checks)))
    if found.steps or found.parity:
        parts += ["## Draft steps", _steps(found)]
    if found.outside_draft_vocabulary is not None:
        parts.append(f"Outside of the draft vocabulary: {_share(found.outside_draft_vocabulary)} of the target's own tokens.")
    if found.predictions:
        parts += ["## Predicted acceptance", _predictions(found)]
    if found.diagnosis is not None:
        parts += ["## Hypotheses", _hypotheses(found.diagnosis)]
    parts.append(f"Computed on {found.device} in {found.seconds:.1f} s.")
    return "\n\n".join(parts) + "\n"


def _steps(found: Verification) -> str:
    parity = {step.step: step for step in found.parity or []}
    accuracy = {step.step: step for step in found.steps}
    rows = []
    for k in sorted({*parity, *accuracy}):
        ours, logits = accuracy.get(k), parity.get(k)
        rows.append(
            [
                str(k),
                f"{ours.right} of {ours.positions}: {_share(ours.accuracy)}" if ours else "",
                f"{ours.right_full} of {ours.positions}: {_share(ours.accuracy_full)}" if ours else "",
                f"{logits.max_difference:.2g}" if logits else "",
                f"{logits.argmax_equal} of {logits.positions}" if logits else "",
            ]
        )
    return _table(["step", "right (draft vocabulary)", "right (target's own token)", "largest logit difference", "best token equal"], rows)


def _predictions(found: Verification) -> str:
    rows = (
        [
            str(p.steps),
            f"topk {p.topk}, {p.draft_tokens} tokens" if p.topk > 1 else "",
            _number(p.accept_length),
            str(p.verify_rounds),
            str(p.right_drafts),
            " ".join(map(str, p.histogram)),
            str(p.near_ties) if p.topk > 1 else "",
        ]
        for p in found.predictions
    )
    head = ["draft steps", "tree", "accept length", "verify rounds", "right drafts", "rounds with 0, 1, … right", "near-ties of trees"]
    return _table(head, rows)


def _hypotheses(diagnosis: Diagnosis) -> str:
    by_logits = diagnosis.method == "logits"
    score = "largest logit difference" if by_logits else "gain, nats per token"
    rows = (
        [h.name, h.kind, f"{h.score:.3g}", "" if h.p_value is None else f"{h.p_value:.2g}", "fits" if h.fits else ""]
        for h in diagnosis.hypotheses[:_HYPOTHESES]
    )
    table = _table(["mis-wiring", "kind", score, "p (corrected)", ""], rows)
    sample = f"Judged by {diagnosis.method} on {diagnosis.positions} positions of {diagnosis.conversations} conversations."
    return "\n\n".join([diagnosis.message, sample, table])


def _share(interval: Interval) -> str:
    return f"{interval.value:.1%} ({interval.low:.1%} to {interval.high:.1%})"


def _number(interval: Interval) -> str:
    return f"{interval.value:.3f} ({interval.low:.3f} to {interval.high:.3f})"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in rows])
