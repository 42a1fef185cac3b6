"""The order of the proof: what is cheap and certain first, and a diagnosis only where a link breaks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from tasks.config import VerifyConfig
from tasks.device import place
from tasks.products import StepCounts
from tasks.report import Report
from tasks.statistics import Interval
from tasks.verdict import Check, Outcome, Verdict
from tasks.verify import acceptance, accuracy, parity, static, tree
from tasks.verify.checkpoint import read_checkpoint
from tasks.verify.diagnosis import diagnose, explain
from tasks.verify.drafter import Drafter, load_drafter
from tasks.verify.features import Features
from tasks.verify.greedy import Text, greedy_text, guesses
from tasks.verify.results import Diagnosis, HeldOut, Prediction, StepAccuracy, StepParity, Verification
from tasks.wiring.kinds import Kind
from tasks.wiring.probes import Probe
from tasks.wiring.target import TargetForward

STAGE = "verify"
# Draft steps to measure where neither a record nor a trainer says how many were trained.
_STEPS = 3


def verify(
    config: VerifyConfig,
    *,
    checkpoint: Path,
    target: TargetForward,
    held_out: Sequence[HeldOut],
    trainer_logits: Path | None,
    trainer_steps: Sequence[StepCounts] | None,
    prompts: Sequence[list[int]],
    max_new_tokens: int,
    steps: Sequence[int],
    trees: Sequence[tuple[int, int, int]],
    report: Report,
) -> Verification:
    """See `tasks.verify.verify_drafter`."""
    began = time.monotonic()
    device = place(config.device).device
    report.say(f"verify: the standalone drafter runs on {device}")
    opened = read_checkpoint(checkpoint)
    record = static.read_record(opened)
    longest = max((len(prompt) + max_new_tokens for prompt in prompts), default=0)
    facts = static.examine(opened, record, target.facts, longest=longest)
    checks = list(facts.checks)
    if facts.boundaries is None or not facts.loadable:
        return _conclude(checks, device=device, began=began)

    window = record.draft.attention_window if record and record.draft else opened.architecture.attention_window
    drafter = load_drafter(opened, target.embedding(), device).changed(attention_window=window)
    features = Features(target, facts.boundaries, record.features.boundaries if record else None)

    probes = parity.expected_logits(trainer_logits, checkpoint, config.parity_samples)
    reproduced = _parity(drafter, probes, report)
    if reproduced:
        checks.append(parity.judge(reproduced, config.max_logit_difference))
        checks.append(features.check(probes, lambda boundaries: static.what_to_set(boundaries, opened.architecture, target.facts)))

    overrun = max([*steps, *(length for length, _, _ in trees)], default=0)
    texts = _texts(target, facts.boundaries, prompts, held_out, max_new_tokens, overrun, report)
    rows = held_out if len(held_out) else [_as_held_out(i, text) for i, text in enumerate(texts)]
    trained = len(trainer_steps) if trainer_steps else record.draft.ttt_steps if record and record.draft else _STEPS
    # Where parity holds, no logit is further from the trainer's than this: the two can disagree at nearer ties alone.
    measured, outside = _accuracy(drafter, features, rows, trained, config.max_logit_difference, report)
    if trainer_steps and held_out:
        checks.append(accuracy.judge(measured, trainer_steps))
    shapes = [tree.Shape(*each) for each in trees]
    predictions = [*(acceptance.predict(drafter, texts, steps) if texts and steps else []), *_of_trees(drafter, texts, shapes)]

    found = _diagnose(drafter, features, probes, rows, checks, config, report)
    if found is not None:
        checks = explain(checks, found)
    if measured:
        checks.append(_quality(measured[0], checks, config.low_accuracy))
    return _conclude(
        checks,
        device=device,
        began=began,
        measured=measured,
        reproduced=reproduced,
        outside=outside,
        predictions=predictions,
        found=found,
    )


def _parity(drafter: Drafter, probes: Sequence[Probe], report: Report) -> list[StepParity] | None:
    rows = []
    for i, probe in enumerate(probes):
        rows.append(parity.compare(drafter, probe))
        report.progress(i + 1, len(probes), "rows of logits", {"max_logit_diff": max(step.max_difference for step in rows[-1])})
    return parity.total(rows) if rows else None


def _accuracy(
    drafter: Drafter, features: Features, rows: Sequence[HeldOut], steps: int, tie: float, report: Report
) -> tuple[list[StepAccuracy], Interval | None]:
    counts = []
    for i, item in enumerate(rows):
        counts.append(accuracy.count(drafter, features.target, item, *features.of(item), steps=steps, tie=tie))
        report.progress(i + 1, len(rows), "held-out conversations")
    if not any(count.labels for count in counts):
        return [], None
    return accuracy.total(counts)


def _texts(
    target: TargetForward,
    boundaries: Sequence[int],
    prompts: Sequence[list[int]],
    held_out: Sequence[HeldOut],
    max_new_tokens: int,
    overrun: int,
    report: Report,
) -> list[Text]:
    texts = []
    for prompt, guess in zip(prompts, guesses(prompts, [item.tokens for item in held_out]), strict=True):
        texts.append(greedy_text(target, prompt, boundaries, max_new_tokens=max_new_tokens, overrun=overrun, guess=guess))
        report.progress(len(texts), len(prompts), "prompts decoded")
    return texts


def _of_trees(drafter: Drafter, texts: Sequence[Text], shapes: Sequence[tree.Shape]) -> list[Prediction]:
    return [prediction for shape in shapes if (prediction := acceptance.predict_tree(drafter, texts, shape)) is not None]


def _as_held_out(index: int, text: Text) -> HeldOut:
    """A greedy answer is a conversation of the target's own, so accuracy can be measured on it too."""
    end = text.prompt_length + text.output_tokens
    return HeldOut(id=f"prompt-{index}", tokens=text.tokens[:end], spans=[(text.prompt_length, end)])


def _diagnose(
    drafter: Drafter,
    features: Features,
    probes: Sequence[Probe],
    rows: Sequence[HeldOut],
    checks: Sequence[Check],
    config: VerifyConfig,
    report: Report,
) -> Diagnosis | None:
    """Where a link broke that no static check explains; and where no logits say that the wiring is right."""
    failed = [check for check in checks if check.verdict is Outcome.FAIL]
    if any(check.kind is not None and check.name not in ("accuracy", "features", static.WEIGHTS) for check in failed):
        return None
    if failed or not probes:
        found: Diagnosis = diagnose(drafter, features, probes, rows, bound=config.max_logit_difference, report=report)
        return found
    return None


def _quality(first: StepAccuracy, checks: Sequence[Check], low: float) -> Check:
    """Bad quality is not bad wiring: it is said only where every link holds."""
    numbers = {
        "accuracy": first.accuracy.value,
        "high": first.accuracy.high,
        "low_accuracy": low,
        "right": first.right,
        "positions": first.positions,
    }
    broken = any(check.verdict is Outcome.FAIL for check in checks)
    if not broken and first.accuracy.high < low:
        message = (
            f"Every link holds, and the drafter guesses {first.accuracy.value:.1%} of the next tokens right (below {low:.0%}): "
            "this is its quality, not its wiring. Train on more data, or on data closer to what is served."
        )
        return Check(name="quality", verdict=Outcome.WARN, kind=Kind.QUALITY, message=message, numbers=numbers)
    message = f"{first.right} of {first.positions} next tokens right ({first.accuracy.value:.1%})"
    return Check(name="quality", verdict=Outcome.PASS, message=message, numbers=numbers)


def _hypothesis(checks: Sequence[Check], found: Diagnosis | None) -> str | None:
    """What the diagnosis names; else what the first broken check knows by itself."""
    if found is not None and found.hypothesis:
        return found.hypothesis
    failed = [check for check in checks if check.verdict is Outcome.FAIL]
    return str(failed[0].numbers["hypothesis"]) if failed and "hypothesis" in failed[0].numbers else None


def _conclude(
    checks: Sequence[Check],
    *,
    device: str,
    began: float,
    measured: Sequence[StepAccuracy] = (),
    reproduced: Sequence[StepParity] | None = None,
    outside: Interval | None = None,
    predictions: Sequence[Prediction] = (),
    found: Diagnosis | None = None,
) -> Verification:
    worst = max((step.max_difference for step in reproduced), default=None) if reproduced else None
    metrics = {f"verify.accuracy_step{step.step}": step.accuracy.value for step in measured}
    metrics |= {f"verify.accuracy_full_step{step.step}": step.accuracy_full.value for step in measured}
    metrics |= {f"verify.accept_length_{p.shape}": p.accept_length.value for p in predictions}
    if worst is not None:
        metrics["verify.max_logit_diff"] = worst
    if outside is not None:
        metrics["verify.outside_draft_vocabulary"] = outside.value
    verdict = Verdict.of(
        STAGE,
        checks,
        passed="what was trained is what would be served",
        hypothesis=_hypothesis(checks, found),
        evidence={"diagnosis": found.message} if found else None,
    )
    return Verification(
        verdict=verdict,
        metrics=metrics,
        steps=list(measured),
        parity=list(reproduced) if reproduced else None,
        max_logit_difference=worst,
        outside_draft_vocabulary=outside,
        predictions=list(predictions),
        diagnosis=found,
        device=device,
        seconds=time.monotonic() - began,
    )
