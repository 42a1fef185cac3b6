"""Figures out of rows: pairs, speed-up, noise, tokens per second. Sums of counts and seconds, divided once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tasks.benchmark.results import Acceptance, CategoryFigures, Figures, Percentiles, Phase, Row, ServerName
from tasks.benchmark.setting import Setting
from tasks.statistics import Interval, ratio_of_repeats, ratio_of_sums
from tasks.verdict import Check, MachineTrouble, Outcome, ProofFailed, Verdict
from tasks.wiring.kinds import Kind

Side = ServerName | Literal["again"]


@dataclass(frozen=True)
class PairOfRows:
    """The same group of prompts on each server, one right after the other."""

    group: int
    repeat: int
    plain: list[Row]
    speculative: list[Row]
    champion: list[Row]
    """Empty where no champion was measured with them."""
    again: list[Row]
    """The plain server's second answers, in the final phase."""

    @property
    def complete(self) -> bool:
        """Every request of it was answered; only complete pairs are timed, the others are counted as failures."""
        return all(row.error is None for row in (*self.plain, *self.speculative, *self.champion, *self.again))

    def side(self, side: Side) -> list[Row]:
        return {"plain": self.plain, "speculative": self.speculative, "champion": self.champion, "again": self.again}[side]


def pairs_of(rows: Iterable[Row], phase: Phase, setting: Setting | None = None, concurrency: int | None = None) -> list[PairOfRows]:
    """The pairs of a phase, of one setting and concurrency or of all, ordered by setting, concurrency, repeat and group."""
    sides: dict[tuple[str, int, int, int], dict[Side, list[Row]]] = defaultdict(
        lambda: {"plain": [], "speculative": [], "champion": [], "again": []}
    )
    for row in rows:
        if row.phase == phase and setting in (None, row.setting) and concurrency in (None, row.concurrency):
            sides[row.setting.name, row.concurrency, row.repeat, row.group]["again" if row.again else row.server].append(row)
    return [PairOfRows(group=key[3], repeat=key[2], **side) for key, side in sorted(sides.items(), key=lambda item: item[0])]


def answered(rows: Sequence[Row], phase: Phase, setting: Setting, concurrency: int) -> list[PairOfRows]:
    """The pairs of a phase. Raises MachineTrouble when not one is complete: there is nothing to compute from."""
    pairs = pairs_of(rows, phase, setting, concurrency)
    if not any(pair.complete for pair in pairs):
        errors = [row.error for row in rows if row.error]
        raise MachineTrouble(f"{phase}, {setting}: none of {len(pairs)} pairs was answered by every server; the last error: {errors[-1]}")
    return pairs


def seconds_of(group: Iterable[Row]) -> float:
    """How long a group took: its requests were sent at the same moment, so its slowest one."""
    return max(row.seconds for row in group)


def speedup(pairs: Sequence[PairOfRows], seed: int) -> Interval:
    """Plain time / speculative time over complete pairs; all repeats of a group are resampled together."""
    plain, speculative = _by_group(pairs, "plain"), _by_group(pairs, "speculative")
    return ratio_of_sums([sum(plain[g]) for g in plain], [sum(speculative[g]) for g in plain], seed=seed)


def timing(pairs: Sequence[PairOfRows]) -> Interval:
    """The same ratio with the interval of timing noise alone: what another measurement of just these prompts would say."""
    plain, speculative = _by_group(pairs, "plain"), _by_group(pairs, "speculative")
    return ratio_of_repeats([plain[g] for g in plain], [speculative[g] for g in plain])


def plain_against_itself(pairs: Sequence[PairOfRows]) -> Interval:
    """The speed-up of the plain server over itself, with the interval of timing noise alone.

    Raises MachineTrouble when no group was answered twice: one repeat of each tells nothing of the spread.
    """
    once, again = _by_group(pairs, "plain"), _by_group(pairs, "again")
    if all(len(times) < 2 for times in once.values()):
        raise MachineTrouble("final pairs: no prompt was answered twice by both servers, so the plain server's noise is unknown")
    return ratio_of_repeats([once[g] for g in once], [again[g] for g in once])


def server_figures(pairs: Sequence[PairOfRows], server: Side) -> Figures:
    """Raises nothing that `answered` has not: there is at least one complete pair."""
    sides = [pair.side(server) for pair in pairs if pair.complete]
    rows = [row for side in sides for row in side]
    seconds, tokens = sum(seconds_of(side) for side in sides), sum(row.completion_tokens for row in rows)
    return Figures(
        requests=len(rows),
        output_tokens=tokens,
        seconds=seconds,
        output_tok_s=tokens / seconds,
        requests_s=len(rows) / seconds,
        ttft=_percentiles([row.first_seconds for row in rows]),
        tpot=_seconds_per_token(rows),
        tpot_by_request=_percentiles([_seconds_per_token([row]) for row in rows if _later_tokens(row)] or [0.0]),
        end_to_end=_percentiles([row.seconds for row in rows]),
    )


def acceptance(rows: Iterable[Row]) -> Acceptance:
    """Sums over requests; shorter histograms end where nothing was accepted."""
    rows = list(rows)
    histogram = [0] * max((len(row.histogram) for row in rows), default=0)
    for row in rows:
        for right, count in enumerate(row.histogram):
            histogram[right] += count
    return Acceptance(
        verify_rounds=sum(row.verify_rounds for row in rows), right_drafts=sum(row.right_drafts for row in rows), histogram=histogram
    )


def by_category(pairs: Sequence[PairOfRows], seed: int) -> dict[str, CategoryFigures]:
    """Request by request, since a group may hold several categories."""
    sides: dict[str, list[tuple[Row, Row]]] = defaultdict(list)
    for pair in pairs:
        for plain, speculative in zip(pair.plain, pair.speculative, strict=True) if pair.complete else ():
            sides[plain.category].append((plain, speculative))
    return {category: _category(sides[category], seed) for category in sorted(sides)}


def round_cost(pairs: Sequence[PairOfRows], seed: int) -> Interval:
    """Seconds of a speculative round / seconds of a plain step, after the first token.

    Raises ProofFailed when no round was made: FAIL where there was something to draft, else INVALID.
    """
    complete = [pair for pair in pairs if pair.complete]
    rows = [row for pair in complete for row in pair.speculative]
    if not any(row.verify_rounds for row in rows):
        raise ProofFailed(_no_rounds(sum(_later_tokens(row) for row in rows)))
    step = _seconds_per_token([row for pair in complete for row in pair.plain])
    # Where more than one token came first, a round came with them.
    rounds = [row.verify_rounds - (row.first_tokens > 1) for row in rows]
    return ratio_of_sums([row.seconds - row.first_seconds for row in rows], [count * step for count in rounds], seed=seed)


def first_difference(one: Sequence[int], other: Sequence[int]) -> int:
    """Index of the first token that differs; the shorter length where one is the other's beginning."""
    return next((index for index, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _category(pairs: Sequence[tuple[Row, Row]], seed: int) -> CategoryFigures:
    seconds: dict[int, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for plain, speculative in pairs:
        before = seconds[plain.prompt]
        seconds[plain.prompt] = before[0] + plain.seconds, before[1] + speculative.seconds
    return CategoryFigures(
        prompts=len(seconds),
        baseline_tpot=_seconds_per_token([plain for plain, _ in pairs]),
        spec_tpot=_seconds_per_token([speculative for _, speculative in pairs]),
        speedup=ratio_of_sums([top for top, _ in seconds.values()], [bottom for _, bottom in seconds.values()], seed=seed),
        acceptance=acceptance(speculative for _, speculative in pairs),
    )


def _later_tokens(row: Row) -> int:
    return row.completion_tokens - row.first_tokens


def _seconds_per_token(rows: Sequence[Row]) -> float:
    """TPOT: seconds per output token after the first (after those that came with it)."""
    return sum(row.seconds - row.first_seconds for row in rows) / max(1, sum(_later_tokens(row) for row in rows))


def _percentiles(seconds: Sequence[float]) -> Percentiles:
    p50, p90, p99 = (float(p) for p in np.percentile(seconds, [50, 90, 99]))
    return Percentiles(mean=float(np.mean(seconds)), p50=p50, p90=p90, p99=p99)


def _no_rounds(tokens: int) -> Verdict:
    check = Check(
        name="speculation where asked",
        verdict=Outcome.FAIL if tokens else Outcome.INVALID,
        kind=Kind.LAUNCH_FLAGS if tokens else Kind.INVALID_MEASUREMENT,
        message=f"the speculative server answered {tokens} tokens after the first without a verify round: "
        + ("compare its launch arguments" if tokens else "take prompts with longer answers"),
        numbers={"tokens_after_the_first": tokens},
    )
    return Verdict.of("benchmark", [check], passed="")


def _by_group(pairs: Iterable[PairOfRows], server: Side) -> dict[int, list[float]]:
    """Group to its seconds in each repeat, complete pairs only."""
    times: dict[int, list[float]] = defaultdict(list)
    for pair in pairs:
        if pair.complete:
            times[pair.group].append(seconds_of(pair.side(server)))
    return times
