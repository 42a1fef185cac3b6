"""The reigning champion beside the candidate: when each is asked, and how their times compare."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import chain

from tasks.benchmark import figures
from tasks.benchmark.endpoint import Champion
from tasks.benchmark.evidence import check_of
from tasks.benchmark.figures import PairOfRows
from tasks.benchmark.measure import Measurement
from tasks.benchmark.results import Row, ServerName, Versus
from tasks.benchmark.servers import Servers
from tasks.benchmark.setting import Setting
from tasks.statistics import ratio_of_sums
from tasks.verdict import Check, MachineTrouble


def measure_beside(champion: Champion, measurement: Measurement, servers: Servers, setting: Setting, concurrency: int) -> None:
    """The final repeats of the candidate, and as many of the champion: in triples, or in turns where memory is too small.

    Turns go candidate, champion, champion, candidate, … (ABBA): what drifts evenly over time falls on both alike.
    """
    config, groups = measurement.config, measurement.groups(concurrency)
    servers.pair(setting)
    if champion.has_room():
        measurement.final(servers.pair(setting, ("speculative", "champion")), concurrency)
        return
    measurement.report.say("memory holds no third server: candidate and champion take turns")
    for repeat in chain(range(config.repeats), measurement.further_repeats(setting, concurrency)):
        turns: list[ServerName] = ["speculative", "champion"]
        for server in turns if repeat % 2 == 0 else turns[::-1]:
            pair = servers.pair(setting, (server,))
            measurement.prepare(pair, concurrency)
            measurement.pairs(pair, "final" if server == "speculative" else "champion", [repeat], concurrency, groups)


def compare(champion: Champion, rows: Sequence[Row], setting: Setting, concurrency: int, seed: int) -> Versus:
    """Champion time / candidate time, all repeats of a group resampled together.

    What was measured in turns is put on one clock first: the champion's time of a group is multiplied by the plain server's
    time beside the candidate / its time beside the champion. Raises MachineTrouble when no group was answered by both.
    """
    beside = _beside(rows, setting, concurrency)
    candidate: dict[int, float] = defaultdict(float)
    reigning: dict[int, float] = defaultdict(float)
    for mine, its in beside:
        plain, plain_beside_it = (figures.seconds_of(pair.plain) for pair in (mine, its))
        candidate[mine.group] += figures.seconds_of(mine.speculative)
        reigning[mine.group] += figures.seconds_of(its.champion) * plain / plain_beside_it
    return Versus(
        version=champion.version,
        setting=champion.setting,
        figures=figures.server_figures([its for _, its in beside], "champion"),
        acceptance=figures.acceptance(row for _, its in beside for row in its.champion),
        candidate_tok_s=figures.server_figures([mine for mine, _ in beside], "speculative").output_tok_s,
        over=ratio_of_sums([reigning[group] for group in candidate], list(candidate.values()), seed=seed),
        side_by_side=all(mine is its for mine, its in beside),
    )


def comparable(rows: Sequence[Row], setting: Setting, concurrency: int) -> Check:
    """Times of candidate and champion compare where both gave as many tokens, and the champion drafted, from an empty cache."""
    beside = _beside(rows, setting, concurrency)
    both = [(a, b) for mine, its in beside for a, b in zip(mine.speculative, its.champion, strict=True)]
    unequal = sum(a.completion_tokens != b.completion_tokens for a, b in both)
    idle = sum(row.verify_rounds == 0 for _, row in both if row.completion_tokens > 1)
    cached = sum(row.cached_tokens > 0 for _, row in both) if concurrency == 1 else 0
    return check_of(
        "champion comparable",
        not (unequal or idle or cached),
        told=f"of the champion's {len(both)} answers {unequal} have another length than the candidate's, {idle} no verify round, "
        f"{cached} a prompt from the cache",
        do="the two do not compare: see the log of the champion's server",
        numbers={"answers": len(both), "unequal": unequal, "idle": idle, "cached": cached},
    )


def _beside(rows: Sequence[Row], setting: Setting, concurrency: int) -> list[tuple[PairOfRows, PairOfRows]]:
    """Of each group and repeat that all answered: the pair with the candidate and the one with the champion; a triple is both."""
    mine = figures.answered(rows, "final", setting, concurrency)
    triples = any(pair.champion for pair in mine)
    its = mine if triples else figures.answered(rows, "champion", setting, concurrency)
    known = {(pair.group, pair.repeat): pair for pair in its if pair.complete}
    found = [(pair, known[pair.group, pair.repeat]) for pair in mine if pair.complete and (pair.group, pair.repeat) in known]
    if not found:
        raise MachineTrouble("candidate and champion: there is no prompt that both answered")
    return found
