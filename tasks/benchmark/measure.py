"""Sending requests: warm-up, and pairs in random order. Every request becomes a row, failed ones too."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import permutations

from tasks.benchmark import figures
from tasks.benchmark.endpoint import Endpoint
from tasks.benchmark.results import Phase, Row, ServerName
from tasks.benchmark.setting import Setting
from tasks.benchmark.validity import within_the_batch_limit
from tasks.config import BenchmarkConfig
from tasks.report import Report
from tasks.verdict import DraftproofError, ProofFailed, Verdict

# Per warm-up request: a few rounds of every draft length.
_WARM_UP_TOKENS = 16

Turn = tuple[ServerName, bool]
"""A server, and whether this is the second time that it is asked in this pair."""


@dataclass(frozen=True)
class Pair:
    """The servers that are compared: two, or three with the champion among them."""

    servers: Mapping[ServerName, Endpoint]
    setting: Setting
    """The candidate's."""
    warm: set[int] = field(default_factory=set)
    """Concurrencies at which all were warmed up."""


@dataclass
class Measurement:
    """All requests of one benchmark, in the order in which they were sent."""

    config: BenchmarkConfig
    prompts: Sequence[Sequence[int]]
    categories: Sequence[str]
    report: Report
    random: random.Random
    rows: list[Row] = field(default_factory=list)

    def groups(self, concurrency: int) -> range:
        """Whole groups of `concurrency` prompts; a smaller rest would be measured at another concurrency."""
        return range(len(self.prompts) // concurrency)

    def prepare(self, pair: Pair, concurrency: int) -> None:
        """Warm up the servers unless that was done, at the measured concurrency: the first requests pay for what is set up lazily.

        Raises ProofFailed (INVALID) when a server cannot run so many requests at once.
        """
        if concurrency in pair.warm:
            return
        limits = {server: endpoint.largest_batch() for server, endpoint in pair.servers.items()}
        check = within_the_batch_limit(concurrency, limits)
        if check.verdict.exit_status:
            raise ProofFailed(Verdict.of("benchmark", [check], passed=""))
        for server in pair.servers:
            for group in range(-(-self.config.warmup_prompts // concurrency)):
                place = group % len(self.groups(concurrency))
                self._send(pair, (server, False), "warm-up", 0, concurrency, place, min(_WARM_UP_TOKENS, self.config.output_tokens))
        pair.warm.add(concurrency)

    def final(self, pair: Pair, concurrency: int) -> None:
        """The pairs that decide, and further ones where the machine calls for them. Raises as `prepare` and `further_repeats` do."""
        self.prepare(pair, concurrency)
        groups = self.groups(concurrency)
        self.pairs(pair, "final", range(self.config.repeats), concurrency, groups)
        for repeat in self.further_repeats(pair.setting, concurrency):
            self.pairs(pair, "final", [repeat], concurrency, groups)

    def further_repeats(self, setting: Setting, concurrency: int) -> Iterator[int]:
        """The numbers of further repeats: while the plain server's noise is told too widely, and at most as many again.

        A restless machine costs minutes then, not the measurement. Only the interval's width counts: a measurement that went on until
        the plain server looked equal to itself would find what it wants to find. Raises MachineTrouble when no final pair is complete.
        """
        for repeat in range(self.config.repeats, 2 * self.config.repeats):
            noise = figures.plain_against_itself(figures.answered(self.rows, "final", setting, concurrency))
            if noise.half_width <= self.config.max_noise / 2:
                return
            self.report.say(f"the plain server against itself is known to ± {noise.half_width:.1%}: one more repeat")
            yield repeat

    def pairs(self, pair: Pair, phase: Phase, repeats: Sequence[int], concurrency: int, groups: Sequence[int]) -> None:
        """Each group on every server, one right after the other; the order of groups is random.

        In which order the servers come is random too, and balanced: each order as often as the others, or once more. The repeats (by
        their numbers, which count on from call to call) lie apart in time, so that what a server's uptime does to it is seen. Where a
        speed-up is decided (`final`) the plain server takes part twice: what it is faster than itself is noise, measured just as the
        speed-up is.
        """
        turns: list[Turn] = [(server, False) for server in pair.servers]
        if phase == "final":
            turns.append(("plain", True))
        orders = list(permutations(turns))
        self.random.shuffle(orders)
        total = (max(repeats) + 1) * len(groups)
        for repeat in repeats:
            for endpoint in pair.servers.values():
                endpoint.check_alive()
            drawn = [orders[(repeat * len(groups) + index) % len(orders)] for index in range(len(groups))]
            self.random.shuffle(drawn)
            for index, group in enumerate(self.random.sample(groups, len(groups))):
                for turn in drawn[index]:
                    self._send(pair, turn, phase, repeat, concurrency, group, self.config.output_tokens)
                done = repeat * len(groups) + index + 1
                self.report.progress(done, total, f"{phase} pairs", self._so_far(pair, phase, concurrency))

    def _send(self, pair: Pair, turn: Turn, phase: Phase, repeat: int, concurrency: int, group: int, tokens: int) -> None:
        """One group to one server, its requests at the same time, from an empty prefix cache."""
        server, again = turn
        endpoint = pair.servers[server]
        endpoint.flush_cache()

        def answer(number: int) -> Row:
            row = Row(
                server=server,
                again=again,
                setting=pair.setting,
                concurrency=concurrency,
                phase=phase,
                repeat=repeat,
                group=group,
                prompt=number,
                category=self.categories[number],
            )
            return _answered(row, endpoint, self.prompts[number], tokens)

        with ThreadPoolExecutor(concurrency) as threads:
            answered = list(threads.map(answer, range(group * concurrency, (group + 1) * concurrency)))
        self.rows += answered
        if any(row.error for row in answered):
            endpoint.check_alive()

    def _so_far(self, pair: Pair, phase: Phase, concurrency: int) -> dict[str, float]:
        wanted = (phase, pair.setting, concurrency, None)
        rows = [row for row in self.rows if (row.phase, row.setting, row.concurrency, row.error) == wanted]
        seconds = {name: sum(row.seconds for row in rows if row.server == name) for name in pair.servers}
        tokens = {name: sum(row.completion_tokens for row in rows if row.server == name) for name in seconds}
        return {f"{name} tok/s": concurrency * tokens[name] / seconds[name] for name in seconds if seconds[name] > 0}


def _answered(row: Row, endpoint: Endpoint, prompt: Sequence[int], tokens: int) -> Row:
    try:
        answer = endpoint.stream(prompt, tokens)
    except DraftproofError as error:
        return row.model_copy(update={"error": str(error)})
    return row.model_copy(
        update={
            "prompt_tokens": answer.prompt_tokens,
            "completion_tokens": answer.completion_tokens,
            "cached_tokens": answer.cached_tokens,
            "verify_rounds": answer.verify_rounds,
            "right_drafts": answer.right_drafts,
            "histogram": list(answer.histogram),
            "seconds": answer.seconds,
            "first_seconds": answer.first_seconds,
            "first_tokens": answer.first_tokens,
            "tokens": list(answer.tokens),
        }
    )
