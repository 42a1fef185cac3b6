"""Plain server against speculative server, paired and interleaved: is the drafter faster, and is it what was proved?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from tasks.benchmark.endpoint import Endpoint, Generation, Start
from tasks.benchmark.results import Benchmark, CachedChoice, Prediction
from tasks.config import BenchmarkConfig
from tasks.report import Report

__all__ = ["Benchmark", "CachedChoice", "Endpoint", "Generation", "Prediction", "Start", "benchmark_drafter"]


def benchmark_drafter(
    config: BenchmarkConfig,
    *,
    prompts: Sequence[Sequence[int]],
    predicted: Mapping[int, Prediction],
    start: Start,
    dtype: Literal["float32", "bfloat16", "float16"],
    served_tolerance: float,
    choice: CachedChoice | None,
    seed: int,
    report: Report,
) -> Benchmark:
    """Find the draft length that serves fastest, and measure it against the plain server in pairs.

    Args:
        config: how much is measured; `config.steps` are the candidates.
        prompts: token ids of held-out prompts, in the order that `predicted` counts them.
        predicted: for every candidate draft length, what the standalone drafter's decoding predicts.
        start: starts a server, None = plain, K = speculative with K draft steps; at most one of each runs at a time.
        dtype: what both servers compute in; only in float32 must all greedy texts be the same.
        served_tolerance: largest relative difference of predicted and served acceptance.
        choice: an earlier choice for the same inputs: only the plain server and that draft length are measured.
        seed: of the order of requests and of the bootstrap.
        report: told after each pair what was measured so far.

    Raises BadInput for no prompts, no prediction for a candidate, or fewer prompts than the concurrency;
    MachineTrouble when a server does not start or dies. A request that fails is counted and is a check.
    """
    from tasks.benchmark.run import run

    return run(
        config,
        prompts=prompts,
        predicted=predicted,
        start=start,
        dtype=dtype,
        served_tolerance=served_tolerance,
        choice=choice,
        seed=seed,
        report=report,
    )
