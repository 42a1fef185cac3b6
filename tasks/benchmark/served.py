"""What the numbers say about the drafter as it is served: lossless, and accepted as predicted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from tasks.benchmark.evidence import Evidence, answers, check_of
from tasks.benchmark.figures import acceptance, first_difference
from tasks.benchmark.results import Row
from tasks.verdict import Check, Outcome
from tasks.wiring.kinds import Kind


def speculation_as_asked(evidence: Evidence) -> Check:
    """Only the speculative server verifies drafts (an answer of one token needs no round)."""
    idle = sum(row.verify_rounds == 0 for row in evidence.measured if row.server == "speculative" and row.completion_tokens > 1)
    busy = sum(row.verify_rounds > 0 for row in evidence.measured if row.server == "plain")
    return check_of(
        "speculation where asked",
        idle == busy == 0,
        told=f"{idle} speculative answers without a verify round, {busy} plain ones with one",
        do="compare the launch arguments",
        numbers={"idle": idle, "busy": busy},
        otherwise=Outcome.FAIL,
        kind=Kind.LAUNCH_FLAGS,
    )


def lossless(evidence: Evidence) -> Check:
    """Greedy texts equal the plain server's: all of them in float32; in lower precision a rate, whose differences the judge looks at."""
    both = answers(evidence.rows)
    different = [(plain, spec) for plain, spec in both if plain.tokens != spec.tokens]
    restless = _plain_differences(evidence.rows)
    return check_of(
        "lossless",
        not different,
        told=f"{len(both) - len(different)} of {len(both)} greedy texts are the plain server's ({evidence.dtype})",
        do=f"the plain server differs from itself on {restless} prompts; first: {_described(*different[0]) if different else None}",
        numbers={
            "identical": len(both) - len(different),
            "compared": len(both),
            "plain_differs_from_itself": restless,
            "first": [_described(plain, spec) for plain, spec in different[:3]],
        },
        otherwise=Outcome.FAIL if evidence.dtype == "float32" else Outcome.WARN,
        kind=Kind.GREEDY_DIVERGENCE,
    )


def steady_acceptance(evidence: Evidence) -> Check:
    """Greedy answers to the same prompts accept the same in every repeat, or the server's state gets into it."""
    by_repeat: dict[int, list[Row]] = defaultdict(list)
    for pair in evidence.final:
        by_repeat[pair.repeat] += pair.speculative if pair.complete else []
    lengths = [_accepted(rows) for rows in by_repeat.values() if rows]
    spread = max(lengths) / min(lengths) - 1
    return check_of(
        "steady acceptance",
        spread <= evidence.served_tolerance,
        told=f"acceptance moves by {spread:.1%} between repeats of the same prompts: {[round(length, 3) for length in lengths]}",
        do="try it with the radix cache off, and on a server that has just started",
        numbers={"by_repeat": lengths},
        otherwise=Outcome.WARN,
        kind=Kind.RUNTIME_INTERACTION,
    )


def served_as_predicted(evidence: Evidence) -> Check:
    """Served acceptance against the standalone drafter's on the same prompts.

    Where they differ, training and the standalone forward agree already (verification comes before), so the fault is
    in the serving; which one it is, the live probe and the diagnosis tell by numbers. Without them the kind is the
    one that fits the direction: unsteady = `runtime-interaction`; too high = `launch-flags` (an environment variable
    or flag that fakes or loosens acceptance: nothing in the wiring accepts more than the drafter earns); too low =
    `layer-boundaries`, the one that most public reports and this project's own story come from.
    In float32 the counts agree prompt by prompt, except where two drafts tie within rounding; how many do is told.
    """
    assert evidence.predicted is not None, "checked only where there is a prediction"
    served, predicted = _accepted(evidence.served), evidence.predicted.accept_length
    difference = served / predicted - 1
    expected = list(zip(evidence.predicted.rounds, evidence.predicted.right, strict=True))
    equal = sum((row.verify_rounds, row.right_drafts) == expected[row.prompt] for row in evidence.served)
    steady = steady_acceptance(evidence).verdict is Outcome.PASS
    return check_of(
        "served as predicted",
        abs(difference) <= evidence.served_tolerance,
        told=f"served acceptance {served:.3f}, predicted {predicted:.3f} ({difference:+.1%}, of {evidence.served_tolerance:.0%} at most); "
        f"{equal} of {len(evidence.served)} answers equal by count",
        do="the drafter is not served as it was trained: probe the live server",
        numbers={
            "served": served,
            "predicted": predicted,
            "difference": difference,
            "verify_rounds": sum(row.verify_rounds for row in evidence.served),
            "right_drafts": sum(row.right_drafts for row in evidence.served),
            "answers_equal_by_count": equal,
            "answers": len(evidence.served),
        },
        # In lower precision the texts themselves part; there the replay along the served tokens decides.
        otherwise=Outcome.FAIL if evidence.dtype == "float32" else Outcome.WARN,
        kind=Kind.RUNTIME_INTERACTION if not steady else Kind.LAUNCH_FLAGS if difference > 0 else Kind.LAYER_BOUNDARIES,
    )


def _accepted(rows: Iterable[Row]) -> float:
    return acceptance(rows).accept_length


def _plain_differences(rows: Iterable[Row]) -> int:
    """Prompts that the plain server did not always answer with the same text."""
    texts: dict[int, set[tuple[int, ...]]] = defaultdict(set)
    for row in rows:
        if row.server == "plain" and row.phase in ("explore", "final") and row.error is None:
            texts[row.prompt].add(tuple(row.tokens))
    return sum(len(different) > 1 for different in texts.values())


def _described(plain: Row, speculative: Row) -> dict[str, Any]:
    position = first_difference(plain.tokens, speculative.tokens)
    return {
        "prompt": plain.prompt,
        "setting": plain.setting.name,
        "position": position,
        "plain": plain.tokens[position : position + 4],
        "speculative": speculative.tokens[position : position + 4],
    }
