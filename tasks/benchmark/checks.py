"""What the benchmark's numbers have to satisfy: first that they mean something, then what they say about the drafter."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.benchmark.figures import PairOfRows, first_difference, pairs_of
from tasks.benchmark.results import Prediction, Row, ServerName, accept_length
from tasks.config import BenchmarkConfig
from tasks.statistics import Interval
from tasks.verdict import Check, Outcome
from tasks.wiring.kinds import Kind

# With fewer groups the bootstrap has too little to resample: one group would give an interval without width.
_LEAST_GROUPS = 4

# Share of prompt tokens from the prefix cache; more than this apart, one server was spared work.
_CACHE_TOLERANCE = 0.02


@dataclass(frozen=True)
class Evidence:
    """Everything that a check may look at."""

    config: BenchmarkConfig
    rows: Sequence[Row]
    final: Sequence[PairOfRows]
    noise: Interval
    predicted: Prediction
    steps: int
    dtype: str
    served_tolerance: float

    @property
    def measured(self) -> list[Row]:
        """Answered requests of the pairs, exploring ones included."""
        return [row for row in self.rows if row.phase in ("explore", "final") and row.error is None]

    @property
    def served(self) -> list[Row]:
        """Answers of the chosen speculative server in complete final pairs."""
        return [row for pair in self.final if pair.complete for row in pair.speculative]


def check_all(evidence: Evidence) -> list[Check]:
    """Every check, in the order in which a reader should look at them."""
    return [check(evidence) for check in _CHECKS]


def answers(rows: Iterable[Row]) -> list[tuple[Row, Row]]:
    """Plain and speculative answer to the same prompt, of every complete pair in any phase."""
    rows = list(rows)
    pairs = [pair for phase in ("explore", "final") for pair in pairs_of(rows, phase) if pair.complete]
    return [answers for pair in pairs for answers in zip(pair.plain, pair.speculative, strict=True)]


def every_request_answered(evidence: Evidence) -> Check:
    """Failures are counted here and never dropped: what failed may be what is slow."""
    failed = [row for row in evidence.rows if row.error]
    numbers = {"failed": len(failed), "sent": len(evidence.rows), "errors": sorted({str(row.error) for row in failed})[:3]}
    return _valid(
        "every request answered", not failed, f"{len(failed)} of {len(evidence.rows)} requests failed; see the server's log", numbers
    )


def warmed_up(evidence: Evidence) -> Check:
    """Each server answered at the measured concurrency before its first measured request."""
    cold = []
    seen: dict[tuple[ServerName, int], int] = defaultdict(int)
    for row in evidence.rows:
        server = row.server, row.steps
        if row.phase == "warm-up":
            seen[server] += row.error is None
        elif row.phase != "first-token" and seen[server] < evidence.config.concurrency and server not in cold:
            cold.append(server)
    numbers = {"cold": [f"{name}, {steps} steps" for name, steps in cold], "warm_up_requests": sum(seen.values())}
    return _valid(
        "warmed up", not cold, f"measured without a warm-up at concurrency {evidence.config.concurrency}: {numbers['cold']}", numbers
    )


def equal_outputs(evidence: Evidence) -> Check:
    """Times of a pair compare only where both answers have the same number of tokens."""
    unequal = [
        {"prompt": plain.prompt, "steps": plain.steps, "plain": plain.completion_tokens, "speculative": spec.completion_tokens}
        for plain, spec in answers(evidence.rows)
        if plain.completion_tokens != spec.completion_tokens
    ]
    message = f"{len(unequal)} pairs have outputs of different length, so their times do not compare; first: {unequal[:1]}"
    return _valid("equal output lengths", not unequal, message, {"unequal": len(unequal), "first": unequal[:1]})


def enough_tokens(evidence: Evidence) -> Check:
    """The interval needs enough tokens, of enough different prompts."""
    groups = len({pair.group for pair in evidence.final if pair.complete})
    tokens = sum(row.completion_tokens for row in evidence.served)
    least = evidence.config.min_output_tokens
    message = (
        f"{tokens} output tokens in {groups} groups of prompts; at least {least} in {_LEAST_GROUPS} are needed for an interval: "
        "raise benchmark.prompts or benchmark.output_tokens"
    )
    return _valid(
        "enough tokens", tokens >= least and groups >= _LEAST_GROUPS, message, {"tokens": tokens, "groups": groups, "least": least}
    )


def acceptance_possible(evidence: Evidence) -> Check:
    """K drafts a round cannot be more than K right ones: above it the counts are not what they are taken for."""
    above = [row for row in evidence.measured if row.right_drafts > row.steps * row.verify_rounds]
    worst = max((accept_length(row.right_drafts, row.verify_rounds) for row in above), default=None)
    message = f"{len(above)} answers accept more than steps + 1 tokens a round, at worst {worst}: the server's counters are wrong or faked"
    return _valid("acceptance at most steps + 1", not above, message, {"above": len(above), "worst": worst})


def same_cache_hits(evidence: Evidence) -> Check:
    """Alone, a request finds an empty cache after the flush; requests of one group may share a prefix, equally on both servers."""
    shares: dict[str, float] = {}
    for name in ("plain", "speculative"):
        rows = [row for row in evidence.measured if row.server == name]
        shares[name] = sum(row.cached_tokens for row in rows) / max(1, sum(row.prompt_tokens for row in rows))
    flushed = evidence.config.concurrency > 1 or max(shares.values()) == 0
    apart = abs(shares["plain"] - shares["speculative"])
    message = (
        f"prefix cache served {shares['plain']:.1%} of the prompt tokens on the plain and {shares['speculative']:.1%} on the other server"
    )
    return _valid(
        "cache flushed, equal hits", flushed and apart <= _CACHE_TOLERANCE, message, {f"{k}_hit_share": v for k, v in shares.items()}
    )


def quiet_machine(evidence: Evidence) -> Check:
    """The plain server against itself is 1.0; how far it strays is what a speed-up could be without any drafter."""
    noise, limit = evidence.noise, evidence.config.max_noise
    stray = max(noise.high - 1, 1 - noise.low)
    numbers = {"value": noise.value, "low": noise.low, "high": noise.high, "limit": limit}
    message = f"the plain server against itself is {noise.value:.3f} ({noise.low:.3f} to {noise.high:.3f}); 1 ± {limit} is the limit"
    check = _valid("quiet machine", stray <= limit, f"{message}: the machine is too noisy to measure on", numbers)
    if check.verdict is Outcome.PASS and stray > limit / 2:
        return check.model_copy(update={"verdict": Outcome.WARN, "kind": Kind.INVALID_MEASUREMENT, "message": message})
    return check


def speculation_as_asked(evidence: Evidence) -> Check:
    """Only the speculative server verifies drafts (an answer of one token needs no round)."""
    idle = sum(row.verify_rounds == 0 for row in evidence.measured if row.server == "speculative" and row.completion_tokens > 1)
    busy = sum(row.verify_rounds > 0 for row in evidence.measured if row.server == "plain")
    message = f"{idle} speculative answers without a verify round, {busy} plain ones with one: compare the launch arguments"
    return _fails("speculation where asked", idle == busy == 0, Kind.LAUNCH_FLAGS, message, {"idle": idle, "busy": busy})


def lossless(evidence: Evidence) -> Check:
    """Greedy texts equal the plain server's: all of them in float32; a rate, with a warning, in lower precision."""
    both = answers(evidence.rows)
    different = [(plain, spec) for plain, spec in both if plain.tokens != spec.tokens]
    numbers: dict[str, Any] = {
        "identical": len(both) - len(different),
        "compared": len(both),
        "plain_differs_from_itself": _plain_differences(evidence.rows),
        "first": [_described(plain, spec) for plain, spec in different[:3]],
    }
    message = (
        f"{numbers['identical']} of {len(both)} greedy texts are the plain server's ({evidence.dtype}); "
        f"the plain server differs from itself on {numbers['plain_differs_from_itself']} prompts; first: {numbers['first'][:1]}"
    )
    check = _fails("lossless", not different, Kind.GREEDY_DIVERGENCE, message, numbers)
    if different and evidence.dtype != "float32":
        return check.model_copy(update={"verdict": Outcome.WARN})
    return check


def steady_acceptance(evidence: Evidence) -> Check:
    """Greedy answers to the same prompts accept the same in every repeat, or the server's state gets into it."""
    by_repeat: dict[int, list[Row]] = defaultdict(list)
    for pair in evidence.final:
        by_repeat[pair.repeat] += pair.speculative if pair.complete else []
    lengths = [_accepted(rows) for rows in by_repeat.values() if rows]
    spread = max(lengths) / min(lengths) - 1
    message = f"acceptance moves by {spread:.1%} between repeats of the same prompts: {[round(length, 3) for length in lengths]}"
    check = _fails("steady acceptance", spread <= evidence.served_tolerance, Kind.RUNTIME_INTERACTION, message, {"by_repeat": lengths})
    return check if check.verdict is Outcome.PASS else check.model_copy(update={"verdict": Outcome.WARN})


def served_as_predicted(evidence: Evidence) -> Check:
    """Served acceptance against the standalone drafter's on the same prompts.

    Where they differ, training and the standalone forward agree already (verification comes before), so the fault is
    in the serving; which one it is, the live probe and the diagnosis tell by numbers. Without them the kind is the
    one that fits the direction: unsteady = `runtime-interaction`; too high = `launch-flags` (an environment variable
    or flag that fakes or loosens acceptance: nothing in the wiring accepts more than the drafter earns); too low =
    `layer-boundaries`, the one that most public reports and this project's own story come from.
    In float32 the counts agree prompt by prompt, except where two drafts tie within rounding; how many do is told.
    """
    served, predicted = _accepted(evidence.served), evidence.predicted.accept_length
    difference = served / predicted - 1
    expected = list(zip(evidence.predicted.rounds, evidence.predicted.right, strict=True))
    equal = sum((row.verify_rounds, row.right_drafts) == expected[row.prompt] for row in evidence.served)
    steady = steady_acceptance(evidence).verdict is Outcome.PASS
    kind = Kind.RUNTIME_INTERACTION if not steady else Kind.LAUNCH_FLAGS if difference > 0 else Kind.LAYER_BOUNDARIES
    message = (
        f"served acceptance {served:.3f}, predicted {predicted:.3f} ({difference:+.1%}; {evidence.served_tolerance:.0%} is allowed), "
        f"{equal} of {len(evidence.served)} answers equal by count: probe the live server (`draftproof verify --server`)"
    )
    numbers = {
        "served": served,
        "predicted": predicted,
        "difference": difference,
        "verify_rounds": sum(row.verify_rounds for row in evidence.served),
        "right_drafts": sum(row.right_drafts for row in evidence.served),
        "answers_equal_by_count": equal,
        "answers": len(evidence.served),
    }
    return _fails("served as predicted", abs(difference) <= evidence.served_tolerance, kind, message, numbers)


_CHECKS: list[Callable[[Evidence], Check]] = [
    every_request_answered,
    warmed_up,
    equal_outputs,
    enough_tokens,
    acceptance_possible,
    same_cache_hits,
    quiet_machine,
    speculation_as_asked,
    lossless,
    steady_acceptance,
    served_as_predicted,
]


def _valid(name: str, fine: bool, message: str, numbers: dict[str, Any]) -> Check:
    """A check whose failure means that nothing was measured."""
    verdict, kind = (Outcome.PASS, None) if fine else (Outcome.INVALID, Kind.INVALID_MEASUREMENT)
    return Check(name=name, verdict=verdict, kind=kind, message=name if fine else message, numbers=numbers)


def _fails(name: str, fine: bool, kind: Kind, message: str, numbers: dict[str, Any]) -> Check:
    """A check whose failure means that something is wrong with what was measured."""
    return Check(name=name, verdict=Outcome.PASS if fine else Outcome.FAIL, kind=None if fine else kind, message=message, numbers=numbers)


def _accepted(rows: Iterable[Row]) -> float:
    rows = list(rows)
    return accept_length(sum(row.right_drafts for row in rows), sum(row.verify_rounds for row in rows))


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
        "steps": plain.steps,
        "position": position,
        "plain": plain.tokens[position : position + 4],
        "speculative": speculative.tokens[position : position + 4],
    }
