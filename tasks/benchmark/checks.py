"""Every check of the benchmark."""

from __future__ import annotations

from collections.abc import Callable

from tasks.benchmark import served, validity
from tasks.benchmark.evidence import Evidence
from tasks.benchmark.results import Point
from tasks.verdict import Check, Outcome, Verdict

# In the order in which a reader should look at them: first whether the numbers mean anything, then what they say.
_CHECKS: list[Callable[[Evidence], Check]] = [
    validity.every_request_answered,
    validity.warmed_up,
    validity.equal_outputs,
    validity.enough_tokens,
    validity.acceptance_possible,
    validity.same_cache_hits,
    validity.quiet_machine,
    served.speculation_as_asked,
    served.lossless,
    served.steady_acceptance,
]


def check_all(evidence: Evidence) -> list[Check]:
    """Each check with its own verdict and numbers; the prediction's only where there is one."""
    made = [check(evidence) for check in _CHECKS]
    return [*made, served.served_as_predicted(evidence)] if evidence.predicted else made


def of_a_further_point(point: Point) -> Check:
    """A concurrency that does not decide, in one check: a broken proof breaks the run, a poor measurement only itself."""
    verdict = Verdict.of("benchmark", point.checks, passed=f"all {len(point.checks)} checks pass")
    return Check(
        name=f"concurrency {point.concurrency}",
        verdict=Outcome.WARN if verdict.verdict is Outcome.INVALID else verdict.verdict,
        kind=verdict.kind,
        message=verdict.message,
        numbers={check.name: check.verdict for check in point.checks},
    )
