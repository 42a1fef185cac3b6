"""The Prefect task of the benchmark, servers included."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from tasks.benchmark import Benchmark, CachedChoice, Champion, Prediction, Setting, Start, benchmark_drafter, render
from tasks.benchmark.results import Point, Row, Versus
from tasks.config import BenchmarkConfig
from tasks.stage import StageRun, stage_task
from tasks.store import Store, code_digest
from tasks.verdict import Check, Outcome, ProofFailed, Verdict

_FILE = "choice.json"

Judge = Callable[[Benchmark], list[Check]]
"""What the standalone drafter and its target say of the answers that were given."""


@stage_task("benchmark", retries=1)
def benchmark(
    run: StageRun,
    *,
    config: BenchmarkConfig,
    served: Mapping[str, object],
    prompts: Sequence[Sequence[int]],
    categories: Sequence[str] | None,
    predicted: Mapping[Setting, Prediction],
    starter: Callable[[StageRun], Start],
    choice: CachedChoice | None = None,
    champion: Callable[[StageRun], Champion] | None = None,
    dtype: Literal["float32", "bfloat16", "float16"],
    served_tolerance: float,
    seed: int,
    store: Store,
    judge: Judge | None = None,
) -> Benchmark:
    """Plain against speculative. The choice of the setting is kept by content; plain and best are always measured again.

    `served` says what is measured (hashes, launch settings, versions): with it the earlier choice is found. Servers that
    run already leave none: it is given as `choice`. `champion` is measured beside the chosen setting.
    `judge` is asked where a check failed, and always in lower precision, where counts and texts part at near-ties.
    Raises ProofFailed when the measurement is invalid, or what is served is not what was predicted.
    """
    key = store.key(
        "benchmark",
        {
            "config": config.model_dump(mode="json"),
            "served": dict(served),
            "prompts": [list(prompt) for prompt in prompts],
            "settings": [setting.name for setting in predicted],
            "code": code_digest("benchmark", "deploy"),
        },
    )
    found = benchmark_drafter(
        config,
        prompts=prompts,
        categories=categories,
        predicted=predicted,
        start=starter(run),
        dtype=dtype,
        served_tolerance=served_tolerance,
        choice=choice or _choice(store, key),
        champion=champion(run) if champion else None,
        seed=seed,
        report=run,
    )
    if judge is not None and (dtype != "float32" or any(check.verdict is Outcome.FAIL for check in found.checks)):
        # First, since of two that fail the judge's names the fault by numbers.
        found = found.model_copy(update={"checks": [*judge(found), *found.checks]})
    _keep_choice(store, key, found)
    record(run, found)
    verdict = Verdict.of("benchmark", found.checks, passed="the measurement is valid, and what is served is what was predicted")
    run.verdict(verdict)
    if verdict.verdict.exit_status:
        raise ProofFailed(verdict)
    return found


def _choice(store: Store, key: str) -> CachedChoice | None:
    product = store.find("benchmark", key)
    if product is None:
        return None
    return CachedChoice.model_validate_json((store.folder("benchmark", key) / str(product["file"])).read_text(encoding="utf-8"))


def _keep_choice(store: Store, key: str, found: Benchmark) -> None:
    """Unless there is one, or nothing valid was measured."""
    if any(check.verdict == "INVALID" for check in found.checks):
        return

    def build(folder: Path) -> dict[str, str]:
        (folder / _FILE).write_text(found.choice.model_dump_json(indent=1), encoding="utf-8")
        return {"file": _FILE}

    store.make("benchmark", key, build)


def record(run: StageRun, found: Benchmark) -> None:
    """Figures of the stage's run and of the whole, and the tables as artifacts."""
    for point in found.points:
        run.log({name if point is found.point else f"concurrency_{point.concurrency}.{name}": v for name, v in _figures(point).items()})
    run.log({"failures": found.failures})
    run.headline({f"bench.{name}": value for name, value in headlines(found.point).items()})
    if found.versus is not None:
        run.headline({f"bench.{name}": value for name, value in against_champion(found.versus).items()})
    if found.point.predicted_accept_length is not None:
        run.headline({"verify.accept_length": found.point.predicted_accept_length})
    run.text("benchmark.md", render(found))
    run.text("benchmark.json", found.model_dump_json(indent=1, exclude={"rows"}))
    run.text("requests.csv", _table(found.rows))


def headlines(point: Point) -> dict[str, float]:
    """By the names of `design.md`, without `bench.`."""
    return {
        "accept_length": point.acceptance.accept_length,
        "steps": point.setting.steps,
        "topk": point.setting.topk,
        "draft_tokens": point.setting.draft_tokens,
        "baseline_tok_s": point.plain.output_tok_s,
        "spec_tok_s": point.speculative.output_tok_s,
        "baseline_tpot": point.plain.tpot,
        "spec_tpot": point.speculative.tpot,
        "speedup": point.speedup.value,
        "speedup_low": point.speedup.low,
        "speedup_high": point.speedup.high,
        "identical": point.identical,
        "compared": point.compared,
    }


def against_champion(versus: Versus) -> dict[str, float]:
    """What was measured beside the candidate, without `bench.`; `over_champion` is the candidate's speed in the champion's."""
    return {
        "champion_tok_s": versus.figures.output_tok_s,
        "champion_accept_length": versus.acceptance.accept_length,
        "over_champion": versus.over.value,
        "over_champion_low": versus.over.low,
        "over_champion_high": versus.over.high,
    }


def _figures(point: Point) -> dict[str, float]:
    predicted = {} if point.predicted_accept_length is None else {"predicted_accept_length": point.predicted_accept_length}
    by_server = {
        f"{server}.{name}": value
        for server, figures in (("plain", point.plain), ("spec", point.speculative))
        for name, value in {
            "requests_s": figures.requests_s,
            "ttft_p50": figures.ttft.p50,
            "ttft_p99": figures.ttft.p99,
            "end_to_end_p50": figures.end_to_end.p50,
            "end_to_end_p99": figures.end_to_end.p99,
        }.items()
    }
    return {
        **headlines(point),
        "verify_rounds": point.acceptance.verify_rounds,
        "right_drafts": point.acceptance.right_drafts,
        **predicted,
        "timing_low": point.timing.low,
        "timing_high": point.timing.high,
        "noise_low": point.noise.low,
        "noise_high": point.noise.high,
        **by_server,
    }


def _table(rows: Sequence[Row]) -> str:
    """One line per request."""
    stream = io.StringIO()
    writer = csv.writer(stream)
    names = list(Row.model_fields)
    writer.writerow(names)
    for row in rows:
        values = {**row.model_dump(mode="json"), "setting": row.setting.name}
        writer.writerow([json.dumps(v) if isinstance(v := values[name], list) else v for name in names])
    return stream.getvalue()
