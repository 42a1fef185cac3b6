"""The plain server against itself, twenty times: how often the interval holds the truth, 1.0, and how wide it is."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from rich.table import Table

from tasks.benchmark import CachedChoice, Endpoint, Setting, benchmark_drafter
from tasks.config import BenchmarkConfig, DeployConfig, load
from tasks.deploy import start_server
from tasks.report import Silent
from tasks.statistics import Interval
from tests.bench.drafter import Benched

_MEASUREMENTS, _ENOUGH = 20, 18
_WIDEST = 0.05
"""Half of an interval's width, as a share of its value."""
_DEMO = Path(__file__).resolve().parents[2] / "configs" / "demo.yaml"
_NOBODY = Setting(steps=1)
"""In the place of a drafter's setting: nothing is drafted."""


def measure(benched: Benched) -> tuple[Table, dict[str, Any]]:
    """As large as the demo's final measurement, by the same door; one server is both sides of every pair."""
    config = load(_DEMO).benchmark
    prompts = [item.tokens[: item.spans[-1][0]] for item in benched.held_out(config.prompts)]
    found = repeat(benched.deploy, benched.target.folder, prompts, config, range(_MEASUREMENTS))
    return table(found), summary(found)


def repeat(
    deploy: DeployConfig, target: Path, prompts: Sequence[list[int]], config: BenchmarkConfig, seeds: Sequence[int]
) -> list[dict[str, Any]]:
    """One measurement per seed, one after the other, on a server that is started once."""
    with (
        tempfile.TemporaryDirectory() as logs,
        start_server(deploy, target=target, drafter=None, steps=None, log=Path(logs) / "plain.log", report=Silent()) as server,
    ):
        return [_once(server, prompts, config, seed) for seed in seeds]


def _once(server: Endpoint, prompts: Sequence[list[int]], config: BenchmarkConfig, seed: int) -> dict[str, Any]:
    """`as_noise`: what a benchmark reports of its plain server; `as_speedup`: what it would say of a drafter that changes nothing."""
    began = time.monotonic()
    found = benchmark_drafter(
        config,
        prompts=prompts,
        predicted={},
        start=lambda setting: nullcontext(server),
        dtype="float32",
        served_tolerance=1.0,
        choice=CachedChoice(settings={config.concurrency: _NOBODY}),
        seed=seed,
        report=Silent(),
    )
    rows = [row.model_dump(include={"server", "repeat", "group", "seconds"}) for row in found.rows if row.phase == "final"]
    return {
        "seed": seed,
        "seconds": time.monotonic() - began,
        "as_noise": found.point.noise.model_dump(),
        "as_speedup": found.speedup.model_dump(),
        "requests": rows,
    }


def summary(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How many intervals hold 1.0, and how many are as narrow as they have to be."""
    return {"measurements": found, **{name: _counts([Interval(**one[name]) for one in found]) for name in ("as_noise", "as_speedup")}}


def _counts(intervals: Sequence[Interval]) -> dict[str, Any]:
    halves = [interval.half_width for interval in intervals]
    return {
        "of": len(intervals),
        "hold_1": sum(1.0 in interval for interval in intervals),
        "narrow": sum(half <= _WIDEST for half in halves),
        "widest": max(halves),
    }


def table(found: Sequence[dict[str, Any]]) -> Table:
    counts = summary(found)["as_noise"]
    title = f"The plain server against itself: {counts['hold_1']} of {counts['of']} intervals hold 1.0 (of 20, 18 should), "
    made = Table(title=f"{title}{counts['narrow']} are within ±{_WIDEST:.0%}")
    for heading in ("measurement", "seconds", "as reported beside a speed-up", "±", "as a speed-up", "±"):
        made.add_column(heading, justify="right")
    for one in found:
        noise, speedup = Interval(**one["as_noise"]), Interval(**one["as_speedup"])
        cells = [cell for interval in (noise, speedup) for cell in (_told(interval), f"{interval.half_width:.1%}")]
        made.add_row(str(one["seed"]), f"{one['seconds']:.0f}", *cells)
    return made


def _told(interval: Interval) -> str:
    return f"{interval.value:.3f} ({interval.low:.3f} to {interval.high:.3f})"
