"""Figures out of rows: pairs, speed-up, noise, tokens per second. Sums of counts and seconds, divided once."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tasks.benchmark.results import Phase, Row, ServerName
from tasks.statistics import Interval, ratio_of_sums
from tasks.verdict import Check, MachineTrouble, Outcome, ProofFailed, Verdict
from tasks.wiring.kinds import Kind

# Least share of an answer's seconds that is taken as decoding.
_LEAST_DECODING = 0.05


@dataclass(frozen=True)
class PairOfRows:
    """The same group of prompts on both servers, one right after the other."""

    group: int
    repeat: int
    plain: list[Row]
    speculative: list[Row]

    @property
    def complete(self) -> bool:
        """Every request of it was answered; only complete pairs are timed, the others are counted as failures."""
        return all(row.error is None for row in (*self.plain, *self.speculative))


def pairs_of(rows: Iterable[Row], phase: Phase, steps: int | None = None) -> list[PairOfRows]:
    """The pairs of a phase, of one draft length or of all, ordered by draft length, repeat and group."""
    sides: dict[tuple[int, int, int], dict[ServerName, list[Row]]] = defaultdict(lambda: {"plain": [], "speculative": []})
    for row in rows:
        if row.phase == phase and steps in (None, row.steps):
            sides[row.steps, row.repeat, row.group][row.server].append(row)
    return [PairOfRows(group=key[2], repeat=key[1], **side) for key, side in sorted(sides.items())]


def answered(rows: Sequence[Row], phase: Phase, steps: int) -> list[PairOfRows]:
    """The pairs of a phase. Raises MachineTrouble when not one is complete: there is nothing to compute from."""
    pairs = pairs_of(rows, phase, steps)
    if not any(pair.complete for pair in pairs):
        errors = [row.error for row in rows if row.error]
        raise MachineTrouble(
            f"{phase}, {steps} steps: none of {len(pairs)} pairs was answered by both servers; the last error: {errors[-1]}"
        )
    return pairs


def seconds_of(group: Iterable[Row]) -> float:
    """How long a group took: its requests were sent at the same moment, so its slowest one."""
    return max(row.seconds for row in group)


def speedup(pairs: Sequence[PairOfRows], seed: int) -> Interval:
    """Plain time / speculative time over complete pairs; all repeats of a group are resampled together."""
    plain, speculative = _by_group(pairs, "plain"), _by_group(pairs, "speculative")
    return ratio_of_sums([sum(plain[g]) for g in plain], [sum(speculative[g]) for g in plain], seed=seed)


def plain_against_itself(pairs: Sequence[PairOfRows], seed: int) -> Interval:
    """The speed-up of the plain server over itself: two different repeats of each group, drawn by the seed.

    The two lie further apart in time than the halves of a pair, so this errs on the side of too much noise.
    Raises MachineTrouble when no group was answered twice.
    """
    draw = random.Random(seed)
    drawn = [draw.sample(times, 2) for times in _by_group(pairs, "plain").values() if len(times) >= 2]
    if not drawn:
        raise MachineTrouble("final pairs: no prompt was answered twice by both servers, so the plain server's noise is unknown")
    return ratio_of_sums([first for first, _ in drawn], [second for _, second in drawn], seed=seed)


def tokens_per_second(pairs: Sequence[PairOfRows], server: ServerName) -> float:
    """Output tokens / seconds, at the measured concurrency."""
    sides = [_side(pair, server) for pair in pairs if pair.complete]
    return sum(row.completion_tokens for side in sides for row in side) / sum(seconds_of(side) for side in sides)


def decoding(pairs: Sequence[PairOfRows], rows: Iterable[Row], server: ServerName) -> list[tuple[float, int, int]]:
    """Per answer of complete pairs: seconds after the first token, tokens after the first, verify rounds.

    The time to the first token is that of the one-token request for the same prompt on the same server, but never
    so much that nothing is left for the others: a hiccup there must not turn seconds negative.
    Answers whose one-token request failed are left out here (the failure is counted).
    """
    first = {(r.steps, r.prompt): r.seconds for r in rows if r.phase == "first-token" and r.server == server and r.error is None}
    return [
        (max(row.seconds - first[row.steps, row.prompt], _LEAST_DECODING * row.seconds), row.completion_tokens - 1, row.verify_rounds)
        for pair in pairs
        if pair.complete
        for row in _side(pair, server)
        if (row.steps, row.prompt) in first
    ]


def seconds_per_token(pairs: Sequence[PairOfRows], rows: Iterable[Row], server: ServerName) -> float:
    """TPOT: seconds per output token after the first."""
    answers = decoding(pairs, rows, server)
    return sum(seconds for seconds, _, _ in answers) / max(1, sum(tokens for _, tokens, _ in answers))


def round_cost(pairs: Sequence[PairOfRows], rows: Sequence[Row], seed: int) -> Interval:
    """Seconds of a speculative round / seconds of a plain step.

    Raises ProofFailed when no round was made: FAIL where there was something to draft, else INVALID.
    """
    rounds = decoding(pairs, rows, "speculative")
    if not any(count for _, _, count in rounds):
        raise ProofFailed(_no_rounds(sum(tokens for _, tokens, _ in rounds)))
    step = seconds_per_token(pairs, rows, "plain")
    return ratio_of_sums([seconds for seconds, _, _ in rounds], [count * step for _, _, count in rounds], seed=seed)


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


def first_difference(one: Sequence[int], other: Sequence[int]) -> int:
    """Index of the first token that differs; the shorter length where one is the other's beginning."""
    return next((index for index, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _side(pair: PairOfRows, server: ServerName) -> list[Row]:
    return pair.plain if server == "plain" else pair.speculative


def _by_group(pairs: Iterable[PairOfRows], server: ServerName) -> dict[int, list[float]]:
    """Group to its seconds in each repeat, complete pairs only."""
    times: dict[int, list[float]] = defaultdict(list)
    for pair in pairs:
        if pair.complete:
            times[pair.group].append(seconds_of(_side(pair, server)))
    return times
