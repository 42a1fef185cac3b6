"""The benchmark's course: explore settings, choose one for each concurrency, measure it against the plain server."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from tasks.benchmark import champion as reigning
from tasks.benchmark import figures
from tasks.benchmark.checks import check_all, of_a_further_point
from tasks.benchmark.endpoint import Champion, Start
from tasks.benchmark.evidence import Evidence, answers
from tasks.benchmark.explore import Explorer
from tasks.benchmark.measure import Measurement
from tasks.benchmark.results import Benchmark, CachedChoice, Point, Prediction
from tasks.benchmark.servers import Servers
from tasks.benchmark.setting import Setting
from tasks.config import BenchmarkConfig
from tasks.report import Report
from tasks.verdict import BadInput

_UNNAMED = "prompts"  # the category of prompts that have none


def run(
    config: BenchmarkConfig,
    *,
    prompts: Sequence[Sequence[int]],
    categories: Sequence[str] | None,
    predicted: Mapping[Setting, Prediction],
    start: Start,
    dtype: str,
    served_tolerance: float,
    choice: CachedChoice | None,
    champion: Champion | None,
    seed: int,
    report: Report,
) -> Benchmark:
    """See `tasks.benchmark.benchmark_drafter`."""
    concurrencies = list(dict.fromkeys([config.concurrency, *config.concurrencies]))
    used = min(len(prompts), config.prompts) // config.concurrency * config.concurrency
    _check_input(config, used, prompts, predicted, concurrencies, choice)
    report.say(
        f"{used} of {len(prompts)} prompts are measured (at most {config.prompts}, a multiple of the concurrency {config.concurrency})"
    )
    predicted = {setting: Prediction(rounds=p.rounds[:used], right=p.right[:used]) for setting, p in predicted.items()}
    measurement = Measurement(config, prompts[:used], categories or [_UNNAMED] * used, report, random.Random(seed))
    with Servers(start, champion) as servers:
        chosen = choice or Explorer(measurement, predicted, servers, concurrencies, seed).explore()
        for concurrency in _fewest_starts(concurrencies, chosen.settings):
            setting = chosen.settings[concurrency]
            if champion is not None and concurrency == config.concurrency:
                reigning.measure_beside(champion, measurement, servers, setting, concurrency)
                continue
            measurement.final(servers.pair(setting), concurrency)

    def point(concurrency: int) -> Point:
        setting = chosen.settings[concurrency]
        final = figures.answered(measurement.rows, "final", setting, concurrency)
        evidence = Evidence(
            config=config,
            rows=[row for row in measurement.rows if row.concurrency == concurrency],
            final=final,
            noise=figures.plain_against_itself(final),
            predicted=predicted.get(setting),
            setting=setting,
            concurrency=concurrency,
            dtype=dtype,
            served_tolerance=served_tolerance,
        )
        return _point(evidence, seed)

    return _result([point(concurrency) for concurrency in concurrencies], chosen, measurement, champion, seed)


def _fewest_starts(concurrencies: Sequence[int], settings: Mapping[int, Setting]) -> list[int]:
    """Those with the same setting one after the other, the deciding one first."""
    order = list(dict.fromkeys(settings[concurrency] for concurrency in concurrencies))
    return sorted(concurrencies, key=lambda concurrency: order.index(settings[concurrency]))


def _point(evidence: Evidence, seed: int) -> Point:
    texts = [plain.tokens == speculative.tokens for plain, speculative in answers(evidence.rows)]
    return Point(
        concurrency=evidence.concurrency,
        setting=evidence.setting,
        plain=figures.server_figures(evidence.final, "plain"),
        speculative=figures.server_figures(evidence.final, "speculative"),
        speedup=figures.speedup(evidence.final, seed),
        timing=figures.timing(evidence.final),
        noise=evidence.noise,
        acceptance=figures.acceptance(evidence.served),
        predicted_accept_length=evidence.predicted.accept_length if evidence.predicted else None,
        identical=sum(texts),
        compared=len(texts),
        checks=check_all(evidence),
    )


def _result(points: list[Point], chosen: CachedChoice, measurement: Measurement, champion: Champion | None, seed: int) -> Benchmark:
    decides, *further = points
    checks = list(decides.checks)
    versus = None
    if champion is not None:
        versus = reigning.compare(champion, measurement.rows, decides.setting, decides.concurrency, seed)
        checks.append(reigning.comparable(measurement.rows, decides.setting, decides.concurrency))
    return Benchmark(
        points=points,
        candidates=chosen.candidates,
        categories=figures.by_category(figures.answered(measurement.rows, "final", decides.setting, decides.concurrency), seed),
        failures=sum(row.error is not None for row in measurement.rows),
        versus=versus,
        checks=[*checks, *(of_a_further_point(point) for point in further)],
        rows=list(measurement.rows),
    )


def _check_input(
    config: BenchmarkConfig,
    used: int,
    prompts: Sequence[Sequence[int]],
    predicted: Mapping[Setting, Prediction],
    concurrencies: Sequence[int],
    choice: CachedChoice | None,
) -> None:
    if used < max(concurrencies):
        raise BadInput(
            "benchmark.prompts",
            found=f"{len(prompts)} prompts, of which at most {config.prompts} are used",
            expected=f"at least {max(concurrencies)}, the highest concurrency",
            do="Give more prompts, or lower benchmark.concurrency and benchmark.concurrencies.",
        )
    if choice is None and not predicted:
        raise BadInput(
            "benchmark.steps",
            found="no setting with a prediction",
            expected="a prediction for every setting, or a choice",
            do="See that benchmark.steps, topk and draft_tokens fit together.",
        )
    if choice is not None and not set(concurrencies) <= set(choice.settings):
        raise BadInput(
            "benchmark.concurrencies",
            found=f"a choice for {sorted(choice.settings)}",
            expected=f"one for each of {concurrencies}",
            do="Explore anew.",
        )
    for setting, prediction in predicted.items():
        if not len(prediction.rounds) == len(prediction.right) == len(prompts):
            raise BadInput(
                "benchmark.steps",
                found=f"a prediction for {setting} on {len(prediction.rounds)} prompts",
                expected=f"one on the {len(prompts)} prompts that are measured",
                do="Let verification simulate every setting on the same prompts.",
            )
