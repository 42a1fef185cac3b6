"""Every check of the benchmark."""

from __future__ import annotations

from collections.abc import Callable

from tasks.benchmark import served, validity
from tasks.benchmark.evidence import Evidence
from tasks.verdict import Check

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
    served.served_as_predicted,
]


def check_all(evidence: Evidence) -> list[Check]:
    """Each check with its own verdict and numbers."""
    return [check(evidence) for check in _CHECKS]
