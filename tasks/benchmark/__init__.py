"""Plain server against speculative server, paired and interleaved: is the drafter faster, and is it what was proved?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from tasks.benchmark.endpoint import Champion, Endpoint, Generation, Start
from tasks.benchmark.results import Benchmark, CachedChoice, Prediction, Row, Versus
from tasks.benchmark.setting import Setting, settings_to_try
from tasks.config import BenchmarkConfig
from tasks.report import Report

__all__ = [
    "Benchmark",
    "CachedChoice",
    "Champion",
    "Endpoint",
    "Generation",
    "Prediction",
    "Row",
    "Setting",
    "Start",
    "Versus",
    "benchmark_drafter",
    "greedy_answers",
    "render",
    "settings_to_try",
]


def benchmark_drafter(
    config: BenchmarkConfig,
    *,
    prompts: Sequence[Sequence[int]],
    categories: Sequence[str] | None = None,
    predicted: Mapping[Setting, Prediction],
    start: Start,
    dtype: Literal["float32", "bfloat16", "float16"],
    served_tolerance: float,
    choice: CachedChoice | None,
    champion: Champion | None = None,
    seed: int,
    report: Report,
) -> Benchmark:
    """Find the setting that serves fastest at each concurrency, and measure it against the plain server in pairs.

    Args:
        config: how much is measured.
        prompts: token ids, in the order that `predicted` counts them.
        categories: of each prompt, for results by category; None = they have none.
        predicted: for every setting that is to be tried, what the standalone drafter's decoding predicts.
        start: starts a server, None = plain, else speculative; at most one of each runs at a time.
        dtype: what both servers compute in; only in float32 must all greedy texts be the same.
        served_tolerance: largest relative difference of predicted and served acceptance.
        choice: an earlier choice for the same inputs: only the plain server and the chosen settings are measured. With it
            there may be no prediction; then served acceptance is told and not judged.
        champion: the drafter that serves now, to be measured beside the chosen setting at `config.concurrency`.
        seed: of the order of requests and of the bootstrap.
        report: told after each pair what was measured so far.

    Raises BadInput for no prompts, no prediction, or fewer prompts than a concurrency; ProofFailed for a concurrency above
    what a server decodes at once, and for a server that does not speculate; MachineTrouble when a server does not start or
    dies. A request that fails is counted and is a check.
    """
    from tasks.benchmark.run import run

    return run(
        config,
        prompts=prompts,
        categories=categories,
        predicted=predicted,
        start=start,
        dtype=dtype,
        served_tolerance=served_tolerance,
        choice=choice,
        champion=champion,
        seed=seed,
        report=report,
    )


def greedy_answers(found: Benchmark) -> list[tuple[Row, Row]]:
    """The plain and the speculative server's answer to the same prompt, of every complete pair at any concurrency."""
    from tasks.benchmark.evidence import answers

    return answers(found.rows)


def render(found: Benchmark) -> str:
    """A benchmark as markdown for a person: figures by concurrency, settings predicted and measured, categories, acceptance."""
    from tasks.benchmark.rendering import render as rendered

    return rendered(found)
