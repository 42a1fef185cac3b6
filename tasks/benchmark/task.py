"""The Prefect task of the benchmark, servers included."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from tasks.benchmark import Benchmark, CachedChoice, Prediction, Start, benchmark_drafter
from tasks.benchmark.results import Row
from tasks.config import BenchmarkConfig
from tasks.stage import StageRun, stage_task
from tasks.store import Store, code_digest
from tasks.verdict import ProofFailed, Verdict

_FILE = "choice.json"


@stage_task("benchmark", retries=1)
def benchmark(
    run: StageRun,
    *,
    config: BenchmarkConfig,
    served: Mapping[str, object],
    prompts: Sequence[Sequence[int]],
    predicted: Mapping[int, Prediction],
    starter: Callable[[StageRun], Start],
    dtype: Literal["float32", "bfloat16", "float16"],
    served_tolerance: float,
    seed: int,
    store: Store,
) -> Benchmark:
    """Plain against speculative. The choice of the draft length is kept by content; plain and best are always measured again.

    `served` says what is measured (hashes, launch settings, versions): with it the earlier choice is found.
    Raises ProofFailed when the measurement is invalid, or what is served is not what was predicted.
    """
    key = store.key(
        "benchmark",
        {
            "config": config.model_dump(mode="json"),
            "served": dict(served),
            "prompts": [list(prompt) for prompt in prompts],
            "code": code_digest("benchmark", "deploy"),
        },
    )
    found = benchmark_drafter(
        config,
        prompts=prompts,
        predicted=predicted,
        start=starter(run),
        dtype=dtype,
        served_tolerance=served_tolerance,
        choice=_choice(store, key),
        seed=seed,
        report=run,
    )
    _keep_choice(store, key, found)
    _record(run, found)
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
        choice = CachedChoice(steps=found.steps, candidates=found.candidates)
        (folder / _FILE).write_text(choice.model_dump_json(indent=1), encoding="utf-8")
        return {"file": _FILE}

    store.make("benchmark", key, build)


def _record(run: StageRun, found: Benchmark) -> None:
    run.log(
        {
            "steps": found.steps,
            "accept_length": found.accept_length,
            "verify_rounds": found.verify_rounds,
            "right_drafts": found.right_drafts,
            "predicted_accept_length": found.predicted_accept_length,
            "baseline_tok_s": found.baseline_tok_s,
            "spec_tok_s": found.spec_tok_s,
            "speedup": found.speedup.value,
            "speedup_low": found.speedup.low,
            "speedup_high": found.speedup.high,
            "noise_low": found.noise.low,
            "noise_high": found.noise.high,
            "identical": found.identical,
            "compared": found.compared,
            "failures": found.failures,
        }
    )
    run.headline(
        {
            "verify.accept_length": found.predicted_accept_length,
            "bench.accept_length": found.accept_length,
            "bench.steps": found.steps,
            "bench.baseline_tok_s": found.baseline_tok_s,
            "bench.spec_tok_s": found.spec_tok_s,
            "bench.speedup": found.speedup.value,
            "bench.speedup_low": found.speedup.low,
            "bench.speedup_high": found.speedup.high,
            "bench.identical": found.identical,
            "bench.compared": found.compared,
        }
    )
    run.text("benchmark.json", found.model_dump_json(indent=1, exclude={"rows"}))
    run.text("requests.csv", _table(found.rows))


def _table(rows: Sequence[Row]) -> str:
    """One line per request."""
    stream = io.StringIO()
    writer = csv.writer(stream)
    names = list(Row.model_fields)
    writer.writerow(names)
    for row in rows:
        values = row.model_dump(mode="json")
        writer.writerow([json.dumps(v) if isinstance(v := values[name], list) else v for name in names])
    return stream.getvalue()
