"""Who watches a run: a live display at a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from flows.estimate import SHARES, Estimate
from flows.outcome import RunReport

_MARKS = {"done": "[green]✓[/]", "cached": "[green]✓[/]", "failed": "[red]✗[/]", "stopped": "[yellow]■[/]"}
_PLAIN_SECONDS = 15.0


class Watcher(Protocol):
    """Told what happens, as it happens."""

    def begin(self, stage: str) -> None: ...

    def progress(self, stage: str, done: float, total: float, unit: str, measured: Mapping[str, float]) -> None: ...

    def say(self, stage: str, text: str) -> None: ...

    def end(self, stage: str, outcome: str) -> None:
        """`outcome`: done, cached, failed or stopped."""


# The command line sets it for the flow that it runs in its own process; a worker's flow has the plain one.
watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)
# What the flow of this process came to: a Prefect state carries only its message.
last_report: ContextVar[RunReport | None] = ContextVar("last_report", default=None)


def spell(seconds: float) -> str:
    """As a person would say it: 45 s, 3 min, 1 h 20 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def figures(measured: Mapping[str, float]) -> str:
    """`accuracy 0.71, tok/s 420`."""
    return ", ".join(f"{name} {value:,.0f}" if abs(value) >= 100 else f"{name} {value:.4g}" for name, value in measured.items())


class PlainLines:
    """One timestamped line for each thing that happens, and one now and then while a stage works."""

    def __init__(self, stages: Sequence[str] = tuple(SHARES)) -> None:
        self._estimate = Estimate(stages)
        self._last = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        return None

    def begin(self, stage: str) -> None:
        now = time.monotonic()
        self._estimate.begin(stage, now)
        self._last = now
        self._line(stage, f"begins; about {spell(self._estimate.whole_left(now))} to the end of the run")

    def progress(self, stage: str, done: float, total: float, unit: str, measured: Mapping[str, float]) -> None:
        now = time.monotonic()
        self._estimate.progress(done, total, unit, now)
        if now - self._last < _PLAIN_SECONDS:
            return
        self._last = now
        known = f"; {figures(measured)}" if measured else ""
        left = f"about {spell(self._estimate.stage_left(now) or 0)} left, {spell(self._estimate.whole_left(now))} for the whole run"
        self._line(stage, f"{done:,.0f} of {total:,.0f} {unit}{known}; {left}")

    def say(self, stage: str, text: str) -> None:
        self._line(stage, text)

    def end(self, stage: str, outcome: str) -> None:
        self._estimate.end(stage, time.monotonic(), cached=outcome == "cached")
        self._line(stage, f"{'found in the cache' if outcome == 'cached' else outcome} after {spell(self._estimate.took[stage])}")

    def _line(self, stage: str, text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {stage:<11} {text}", file=sys.stderr, flush=True)


class LiveDisplay:
    """A table of the stages that redraws itself at a terminal."""

    def __init__(self, console: Console, stages: Sequence[str] = tuple(SHARES)) -> None:
        self._stages = stages
        self._estimate = Estimate(stages)
        self._outcomes: dict[str, str] = {}
        self._notes: dict[str, str] = {}
        self._counts = ""
        self._spinner = Spinner("dots")
        self._live = Live(console=console, get_renderable=self._draw, refresh_per_second=4)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._live.stop()

    def begin(self, stage: str) -> None:
        self._estimate.begin(stage, time.monotonic())
        self._outcomes.pop(stage, None)  # a stage that is tried again
        self._counts = ""

    def progress(self, stage: str, done: float, total: float, unit: str, measured: Mapping[str, float]) -> None:
        self._estimate.progress(done, total, unit, time.monotonic())
        self._counts = f"{done:,.0f}/{total:,.0f} {unit}"
        if measured:
            self._notes[stage] = figures(measured)

    def say(self, stage: str, text: str) -> None:
        self._live.console.print(Text(f"{stage}: {text}", style="dim"))

    def end(self, stage: str, outcome: str) -> None:
        self._estimate.end(stage, time.monotonic(), cached=outcome == "cached")
        self._outcomes[stage] = outcome

    def _draw(self) -> RenderableType:
        now = time.monotonic()
        table = Table.grid(padding=(0, 2))
        for stage in self._stages:
            table.add_row(*self._row(stage, now))
        return Group(table, Text(f"about {spell(self._estimate.whole_left(now))} left", style="bold"))

    def _row(self, stage: str, now: float) -> list[RenderableType]:
        note = Text(self._notes.get(stage, ""), style="cyan")
        if stage in self._outcomes:
            outcome = self._outcomes[stage]
            took = "from the cache" if outcome == "cached" else spell(self._estimate.took[stage])
            return [Text.from_markup(_MARKS[outcome]), stage, took, note]
        if stage != self._estimate.current:
            return [Text("·", style="dim"), Text(stage, style="dim"), "", note]
        bar = ProgressBar(total=1.0, completed=self._estimate.fraction, width=20)
        left = f"{self._counts}  about {spell(self._estimate.stage_left(now) or 0)} left"
        return [self._spinner, Text(stage, style="bold"), bar, Group(Text(left), note) if note.plain else Text(left)]


def watch(stages: Sequence[str] = tuple(SHARES)) -> PlainLines | LiveDisplay:
    """What fits where standard error goes; results go to standard output."""
    console = Console(stderr=True)
    return LiveDisplay(console, stages) if console.is_terminal else PlainLines(stages)
