"""Whether the numbers mean anything: where one of these fails the measurement is INVALID, not slow and not fast."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from tasks.benchmark.evidence import Evidence, answers, check_of
from tasks.benchmark.results import Row, ServerName
from tasks.verdict import Check, Outcome

# With fewer groups the bootstrap has too little to resample: one group would give an interval without width.
_LEAST_GROUPS = 4

# Share of prompt tokens from the prefix cache; more than this apart, one server was spared work.
_CACHE_TOLERANCE = 0.02


def every_request_answered(evidence: Evidence) -> Check:
    """Failures are counted here and never dropped: what failed may be what is slow."""
    failed = [row for row in evidence.rows if row.error]
    return check_of(
        "every request answered",
        not failed,
        told=f"{len(failed)} of {len(evidence.rows)} requests failed",
        do="see the server's log",
        numbers={"failed": len(failed), "sent": len(evidence.rows), "errors": sorted({str(row.error) for row in failed})[:3]},
    )


def warmed_up(evidence: Evidence) -> Check:
    """Each server answered at the measured concurrency before its first measured request."""
    cold: list[str] = []
    seen: dict[tuple[ServerName, str], int] = defaultdict(int)
    for row in evidence.rows:
        if row.phase == "warm-up":
            seen[row.server, row.setting.name] += row.error is None
        elif seen[row.server, row.setting.name] < evidence.concurrency:
            cold.append(f"{row.server}, {row.setting}")
    return check_of(
        "warmed up",
        not cold,
        told=f"{len(cold)} measured requests before a warm-up at concurrency {evidence.concurrency}",
        do=f"warm up {sorted(set(cold))}",
        numbers={"cold_requests": len(cold), "warm_up_requests": sum(seen.values())},
    )


def equal_outputs(evidence: Evidence) -> Check:
    """Times of a pair compare only where both answers have the same number of tokens."""
    unequal = [
        {"prompt": plain.prompt, "setting": plain.setting.name, "plain": plain.completion_tokens, "speculative": spec.completion_tokens}
        for plain, spec in answers(evidence.rows)
        if plain.completion_tokens != spec.completion_tokens
    ]
    return check_of(
        "equal output lengths",
        not unequal,
        told=f"{len(unequal)} pairs have outputs of different length",
        do=f"their times do not compare; first: {unequal[:1]}",
        numbers={"unequal": len(unequal), "first": unequal[:1]},
    )


def enough_tokens(evidence: Evidence) -> Check:
    """The interval needs enough tokens, of enough different prompts."""
    groups = len({pair.group for pair in evidence.final if pair.complete})
    tokens, least = sum(row.completion_tokens for row in evidence.served), evidence.config.min_output_tokens
    return check_of(
        "enough tokens",
        tokens >= least and groups >= _LEAST_GROUPS,
        told=f"{tokens} output tokens in {groups} groups of prompts, of at least {least} in {_LEAST_GROUPS}",
        do="raise benchmark.prompts or benchmark.output_tokens",
        numbers={"tokens": tokens, "groups": groups, "least_tokens": least, "least_groups": _LEAST_GROUPS},
    )


def acceptance_possible(evidence: Evidence) -> Check:
    """K drafts a round cannot be more than K right ones: above it the counts are not what they are taken for."""
    speculative = [row for row in evidence.measured if row.server == "speculative"]
    above = [row for row in speculative if row.right_drafts > row.setting.steps * row.verify_rounds]
    share = max((row.right_drafts / max(1, row.setting.steps * row.verify_rounds) for row in speculative), default=0.0)
    return check_of(
        "acceptance at most steps + 1",
        not above,
        told=f"the best of {len(speculative)} answers accepts {share:.0%} of its drafts, {len(above)} accept more than all",
        do="the server's counters are wrong, or its acceptance is faked",
        numbers={"above": len(above), "highest_share_of_drafts": share},
    )


def same_cache_hits(evidence: Evidence) -> Check:
    """Alone, a request finds an empty cache after the flush; requests of one group may share a prefix, equally on both servers."""
    shares = {name: _cached_share(row for row in evidence.measured if row.server == name) for name in ("plain", "speculative")}
    flushed = evidence.concurrency > 1 or max(shares.values()) == 0
    return check_of(
        "cache flushed, equal hits",
        flushed and abs(shares["plain"] - shares["speculative"]) <= _CACHE_TOLERANCE,
        told=f"prompt tokens from the prefix cache: {shares['plain']:.1%} on the plain, {shares['speculative']:.1%} on the other server",
        do="one server was spared work: see whether its cache is flushed",
        numbers={f"{name}_hit_share": share for name, share in shares.items()},
    )


def within_the_batch_limit(concurrency: int, limits: Mapping[ServerName, int | None]) -> Check:
    """Requests above a server's limit wait for others; above its graphs' they run without graphs. Neither is the asked for concurrency."""
    least = min((limit for limit in limits.values() if limit is not None), default=None)
    return check_of(
        "within the batch limit",
        least is None or concurrency <= least,
        told=f"{concurrency} requests at once, of at most {least or 'an unknown number'} that both servers decode at full speed",
        do="raise deploy.max_running_requests (it sizes the graphs too), or lower benchmark.concurrency and benchmark.concurrencies",
        numbers={"concurrency": concurrency, **{f"{name}_limit": limit for name, limit in limits.items()}},
    )


def quiet_machine(evidence: Evidence) -> Check:
    """The plain server against itself is 1.0; how far it strays is what a speed-up could be without any drafter."""
    noise, limit = evidence.noise, evidence.config.max_noise
    stray = max(noise.high - 1, 1 - noise.low)
    return check_of(
        "quiet machine",
        stray <= limit / 2,
        told=f"the plain server against itself is {noise.value:.3f} ({noise.low:.3f} to {noise.high:.3f}): "
        f"good within 1 ± {limit / 2}, worthless beyond 1 ± {limit}",
        do="end what else runs on this machine, or measure longer",
        numbers={"value": noise.value, "low": noise.low, "high": noise.high, "limit": limit},
        otherwise=Outcome.INVALID if stray > limit else Outcome.WARN,
    )


def _cached_share(rows: Iterable[Row]) -> float:
    rows = list(rows)
    return sum(row.cached_tokens for row in rows) / max(1, sum(row.prompt_tokens for row in rows))
