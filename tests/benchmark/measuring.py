"""A benchmark of made-up servers, with what most tests want."""

from __future__ import annotations

import random
from typing import Any

from tasks.benchmark import Benchmark, CachedChoice, Setting, benchmark_drafter
from tasks.config import BenchmarkConfig
from tasks.report import Silent
from tasks.verdict import Check, Outcome
from tests.benchmark.decoder import Machine, predict

LENGTH = 40


def make_prompts(count: int, seed: int = 0) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(50) for _ in range(draw.randrange(8, 30))] for _ in range(count)]


def measure(machine: Machine, *, prompts: int = 10, given: dict[str, Any] | None = None, seed: int = 1, **config: Any) -> Benchmark:
    settings = BenchmarkConfig.model_validate({"output_tokens": LENGTH, "prompts": prompts, **config})
    texts = make_prompts(prompts, seed)
    arguments: dict[str, Any] = {
        "prompts": texts,
        "predicted": {Setting(steps=k): predict(texts, settings.output_tokens, k, machine.skill) for k in settings.steps},
        "start": machine.start,
        "dtype": "float32",
        "served_tolerance": 0.05,
        "choice": None,
        "seed": seed,
        "report": Silent(),
        **(given or {}),
    }
    return benchmark_drafter(settings, **arguments)


def check_of(result: Benchmark, name: str) -> Check:
    return next(check for check in result.checks if check.name == name)


def chosen(steps: int) -> CachedChoice:
    return CachedChoice(settings={1: Setting(steps=steps)})


def bad(result: Benchmark) -> dict[str, tuple[str, str | None]]:
    return {check.name: (check.verdict, check.kind) for check in result.checks if check.verdict is not Outcome.PASS}
