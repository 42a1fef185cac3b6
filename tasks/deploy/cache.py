"""Kind `runtime-interaction`: whether the drafts that are right depend on what the server has cached."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tasks.deploy.generation import Generation
from tasks.verdict import Check, Outcome
from tasks.wiring.kinds import Kind


def same_when_warm(cold: Sequence[Generation], warm: Sequence[Generation], *, tolerance: float) -> Check:
    """Acceptance of answers to the same prompts: from an empty prefix cache, and again from a filled one.

    Only texts that are the same count: in lower precision a reused prefix may round otherwise, and another text has another
    acceptance. WARN where it moves by more than the share `tolerance`, or nothing can be compared.
    """
    pairs = [(one, other) for one, other in zip(cold, warm, strict=True) if one.tokens == other.tokens]
    reused = sum(other.cached_tokens for _, other in pairs)
    before, after = _acceptance(one for one, _ in pairs), _acceptance(other for _, other in pairs)
    moved = after / before - 1
    steady = reused > 0 and abs(moved) <= tolerance
    told = f"acceptance {before:.3f} from an empty cache, {after:.3f} from a filled one ({moved:+.1%}, of {tolerance:.0%} at most)"
    return Check(
        name="acceptance cold and warm",
        verdict=Outcome.PASS if steady else Outcome.WARN,
        kind=None if steady else Kind.RUNTIME_INTERACTION,
        message=f"{told}; {len(pairs)} of {len(cold)} texts are the same, {reused} prompt tokens were reused"
        + ("" if steady else ": try it with deploy.disable_radix_cache"),
        numbers={"cold": before, "warm": after, "same_texts": len(pairs), "texts": len(cold), "reused_tokens": reused},
    )


def _acceptance(answers: Iterable[Generation]) -> float:
    """1 + right drafts / verify rounds."""
    counted = list(answers)
    return 1 + sum(one.right_drafts for one in counted) / max(1, sum(one.verify_rounds for one in counted))
