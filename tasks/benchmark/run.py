"""The benchmark's course: explore draft lengths, choose one, measure it against the plain server."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from tasks.benchmark import figures
from tasks.benchmark.checks import check_all
from tasks.benchmark.endpoint import Start
from tasks.benchmark.evidence import Evidence, answers
from tasks.benchmark.explore import Explorer
from tasks.benchmark.measure import Measurement
from tasks.benchmark.results import Benchmark, CachedChoice, Prediction
from tasks.benchmark.servers import Servers
from tasks.config import BenchmarkConfig
from tasks.report import Report
from tasks.statistics import Interval
from tasks.verdict import BadInput


def run(
    config: BenchmarkConfig,
    *,
    prompts: Sequence[Sequence[int]],
    predicted: Mapping[int, Prediction],
    start: Start,
    dtype: str,
    served_tolerance: float,
    choice: CachedChoice | None,
    seed: int,
    report: Report,
) -> Benchmark:
    """See `tasks.benchmark.benchmark_drafter`."""
    used = min(len(prompts), config.prompts) // config.concurrency * config.concurrency
    _check_input(config, used, prompts, predicted, [choice.steps] if choice else config.steps)
    report.say(
        f"{used} of {len(prompts)} prompts are measured (at most {config.prompts}, a multiple of the concurrency {config.concurrency})"
    )
    predicted = {steps: Prediction(rounds=p.rounds[:used], right=p.right[:used]) for steps, p in predicted.items()}
    measurement = Measurement(config, prompts[:used], report, random.Random(seed))
    with Servers(start) as servers:
        chosen = choice or Explorer(measurement, predicted, servers, seed).explore()
        pair = servers.pair(chosen.steps)
        measurement.prepare(pair, range(measurement.groups))
        measurement.pairs(pair, "final", config.repeats, range(measurement.groups))
    final = figures.answered(measurement.rows, "final", chosen.steps)
    evidence = Evidence(
        config=config,
        rows=measurement.rows,
        final=final,
        noise=figures.plain_against_itself(final, seed),
        predicted=predicted[chosen.steps],
        steps=chosen.steps,
        dtype=dtype,
        served_tolerance=served_tolerance,
    )
    return _result(evidence, chosen, figures.speedup(final, seed))


def _result(evidence: Evidence, chosen: CachedChoice, speedup: Interval) -> Benchmark:
    final, rows = evidence.final, evidence.rows
    texts = [plain.tokens == speculative.tokens for plain, speculative in answers(rows)]
    return Benchmark(
        steps=chosen.steps,
        candidates=chosen.candidates,
        concurrency=evidence.config.concurrency,
        baseline_tok_s=figures.tokens_per_second(final, "plain"),
        spec_tok_s=figures.tokens_per_second(final, "speculative"),
        baseline_tpot=figures.seconds_per_token(final, rows, "plain"),
        spec_tpot=figures.seconds_per_token(final, rows, "speculative"),
        speedup=speedup,
        noise=evidence.noise,
        verify_rounds=sum(row.verify_rounds for row in evidence.served),
        right_drafts=sum(row.right_drafts for row in evidence.served),
        predicted_accept_length=evidence.predicted.accept_length,
        identical=sum(texts),
        compared=len(texts),
        failures=sum(row.error is not None for row in rows),
        checks=check_all(evidence),
        rows=list(rows),
    )


def _check_input(
    config: BenchmarkConfig, used: int, prompts: Sequence[Sequence[int]], predicted: Mapping[int, Prediction], steps: Sequence[int]
) -> None:
    if used == 0:
        raise BadInput(
            "benchmark.prompts",
            found=f"{len(prompts)} held-out prompts, of which at most {config.prompts} are used",
            expected=f"at least {config.concurrency}, the concurrency",
            do="Give more prompts, or lower benchmark.concurrency.",
        )
    for count in steps:
        prediction = predicted.get(count)
        if prediction is None or not len(prediction.rounds) == len(prediction.right) == len(prompts):
            raise BadInput(
                "benchmark.steps",
                found=f"no prediction for {count} steps on these {len(prompts)} prompts",
                expected="a prediction for every draft length",
                do="Let verification simulate every draft length of benchmark.steps on the same prompts.",
            )
