"""A server without HTTP: really decodes, drafts and verifies, over a made-up language; its seconds are computed."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from tasks.benchmark import Prediction, Setting
from tasks.verdict import MachineTrouble

VOCABULARY = 50


def _draw(*what: object) -> float:
    """A number in [0, 1) that depends on the arguments alone."""
    return int.from_bytes(hashlib.sha256(repr(what).encode()).digest()[:6]) / 2**48


def target(context: Sequence[int]) -> int:
    return int(VOCABULARY * _draw("target", context[-3:]))


def drafter(context: Sequence[int], skill: float) -> int:
    """Right with the probability `skill`."""
    return target(context) if _draw("drafter", context[-4:]) < skill else VOCABULARY


@dataclass(frozen=True)
class Answer:
    tokens: list[int]
    prompt_tokens: int
    cached_tokens: int
    seconds: float
    verify_rounds: int = 0
    right_drafts: int = 0
    histogram: tuple[int, ...] = ()
    first_seconds: float = 0.0
    first_tokens: int = 1

    @property
    def completion_tokens(self) -> int:
        return len(self.tokens)


def decode(prompt: Sequence[int], length: int, steps: int | None, skill: float) -> tuple[list[int], list[int]]:
    """Greedy tokens, and the number of right drafts in each verify round (none without `steps`)."""
    context, rounds = [*prompt, target(prompt)], []
    while len(context) - len(prompt) < length:
        drafted = list(context)
        for _ in range(steps or 0):
            drafted.append(drafter(drafted, skill))
        right = 0
        while right < (steps or 0) and drafted[len(context)] == target(context):
            context.append(target(context))
            right += 1
        context.append(target(context))
        if steps:
            rounds.append(right)
    return context[len(prompt) : len(prompt) + length], rounds


def predict(prompts: Sequence[Sequence[int]], length: int, steps: int, skill: float) -> Prediction:
    rounds = [decode(prompt, length, steps, skill)[1] for prompt in prompts]
    return Prediction(rounds=[len(r) for r in rounds], right=[sum(r) for r in rounds])


@dataclass
class Machine:
    """Starts servers, and knows what they cost: seconds of a plain step, of a round, and how noisy the clock is."""

    skill: float = 0.7
    overhead: float = 0.1
    slope: float = 0.1
    noise: float = 0.02
    seed: int = 0
    started: list[int | None] = field(default_factory=list)
    running: list[int | None] = field(default_factory=list)
    most_running: int = 0
    server_class: type[Server] | None = None
    batch: int | None = 64

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    @contextmanager
    def start(self, setting: Setting | None) -> Iterator[Server]:
        steps = setting.steps if setting else None
        self.started.append(steps)
        self.running.append(steps)
        self.most_running = max(self.most_running, len(self.running))
        try:
            yield (self.server_class or Server)(self, steps)
        finally:
            self.running.remove(steps)

    def seconds(self, prompt: int, steps_of_work: float) -> tuple[float, float]:
        """To the first token, and to the last."""
        disturbed = self.random.lognormvariate(0, self.noise)
        return 0.001 * prompt * disturbed, (0.001 * prompt + 0.05 * steps_of_work) * disturbed


class Server:
    """Keeps a prefix cache until it is flushed."""

    def __init__(self, machine: Machine, steps: int | None) -> None:
        self.machine, self.steps, self.cached = machine, steps, set[tuple[int, ...]]()
        self.requests = 0

    def stream(self, input_ids: Sequence[int], max_new_tokens: int) -> Answer:
        self.requests += 1
        tokens, rounds = decode(input_ids, max_new_tokens, self.steps, self.machine.skill)
        cost = 1 + self.machine.overhead + self.machine.slope * self.steps if self.steps else 1
        cached = len(input_ids) - 1 if tuple(input_ids) in self.cached else 0
        self.cached.add(tuple(input_ids))
        work = cost * (len(rounds) if self.steps else len(tokens) - 1)
        first, whole = self.machine.seconds(len(input_ids) - cached, work)
        return Answer(
            tokens=tokens,
            prompt_tokens=len(input_ids),
            cached_tokens=cached,
            seconds=whole,
            first_seconds=first,
            verify_rounds=len(rounds),
            right_drafts=sum(rounds),
            histogram=tuple(rounds.count(right) for right in range((self.steps or 0) + 1)) if rounds else (),
        )

    def flush_cache(self) -> None:
        self.cached.clear()

    def largest_batch(self) -> int | None:
        return self.machine.batch

    def check_alive(self) -> None:
        if self.steps not in self.machine.running:
            raise MachineTrouble("the server is gone")
