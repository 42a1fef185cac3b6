"""Sending requests: warm-up, first tokens, and pairs in random order. Every request becomes a row, failed ones too."""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from tasks.benchmark.endpoint import Endpoint
from tasks.benchmark.results import Phase, Row, ServerName
from tasks.config import BenchmarkConfig
from tasks.report import Report
from tasks.verdict import DraftproofError

# Per warm-up request: a few rounds of every draft length.
_WARM_UP_TOKENS = 16


@dataclass(frozen=True)
class Pair:
    """The two servers that are compared; `steps` is the draft length of the speculative one."""

    plain: Endpoint
    speculative: Endpoint
    steps: int
    prepared: set[int] = field(default_factory=set)
    """Groups whose first token was timed on these two; empty = not warmed up yet."""

    @property
    def servers(self) -> dict[ServerName, Endpoint]:
        return {"plain": self.plain, "speculative": self.speculative}


@dataclass
class Measurement:
    """All requests of one benchmark, in the order in which they were sent."""

    config: BenchmarkConfig
    prompts: Sequence[Sequence[int]]
    report: Report
    random: random.Random
    rows: list[Row] = field(default_factory=list)

    @property
    def groups(self) -> int:
        """Whole groups of `concurrency` prompts; a smaller rest would be measured at another concurrency."""
        return len(self.prompts) // self.config.concurrency

    def prepare(self, pair: Pair, groups: Sequence[int]) -> None:
        """Warm up both servers unless that was done, and time the first token of every prompt that lacks it.

        The warm-up runs at the measured concurrency: the first requests pay for what is set up lazily. One-token
        requests give the time to the first token without the cost of streaming inside of the pairs.
        """
        for server in pair.servers:
            if not pair.prepared:
                for group in range(-(-self.config.warmup_prompts // self.config.concurrency)):
                    self._send(pair, server, "warm-up", 0, group % self.groups, min(_WARM_UP_TOKENS, self.config.output_tokens))
            for group in groups:
                if group not in pair.prepared:
                    self._send(pair, server, "first-token", 0, group, 1)
        pair.prepared.update(groups)

    def pairs(self, pair: Pair, phase: Phase, repeats: int, groups: Sequence[int]) -> None:
        """Each group on both servers, one right after the other; the order of groups is random.

        Which server comes first is random too, and balanced: half of the pairs of a repeat begin with each.
        """
        total = repeats * len(groups)
        for repeat in range(repeats):
            for endpoint in pair.servers.values():
                endpoint.check_alive()
            plain_first = [index % 2 == repeat % 2 for index in range(len(groups))]
            self.random.shuffle(plain_first)
            for index, group in enumerate(self.random.sample(groups, len(groups))):
                order: list[ServerName] = ["plain", "speculative"]
                for server in order if plain_first[index] else order[::-1]:
                    self._send(pair, server, phase, repeat, group, self.config.output_tokens)
                self.report.progress(repeat * len(groups) + index + 1, total, f"{phase} pairs", self._so_far(pair.steps, phase))

    def _send(self, pair: Pair, server: ServerName, phase: Phase, repeat: int, group: int, tokens: int) -> None:
        """One group to one server, its requests at the same time, from an empty prefix cache."""
        endpoint = pair.servers[server]
        size = self.config.concurrency
        numbers = range(group * size, (group + 1) * size)
        endpoint.flush_cache()

        def answer(number: int) -> Row:
            row = Row(server=server, steps=pair.steps, phase=phase, repeat=repeat, group=group, prompt=number)
            return _answered(row, endpoint, self.prompts[number], tokens)

        with ThreadPoolExecutor(size) as threads:
            answered = list(threads.map(answer, numbers))
        self.rows += answered
        if any(row.error for row in answered):
            endpoint.check_alive()

    def _so_far(self, steps: int, phase: Phase) -> dict[str, float]:
        rows = [row for row in self.rows if row.phase == phase and row.steps == steps and row.error is None]
        seconds = {name: sum(row.seconds for row in rows if row.server == name) for name in ("plain", "speculative")}
        tokens = {name: sum(row.completion_tokens for row in rows if row.server == name) for name in seconds}
        return {f"{name} tok/s": self.config.concurrency * tokens[name] / seconds[name] for name in seconds if seconds[name] > 0}


def _answered(row: Row, endpoint: Endpoint, prompt: Sequence[int], tokens: int) -> Row:
    try:
        answer = endpoint.generate(prompt, tokens)
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
            "tokens": list(answer.tokens),
        }
    )
