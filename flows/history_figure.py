"""The plots of the history page: one target's runs over time. Every run is a point of the first panel, however early it ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plotly.graph_objects import Figure, Scatter

    from tasks.ledger.history import PastRun

_COLOURS = {"PASS": "#2a9d3f", "WARN": "#d99a00", "INVALID": "#8a6fc0", "FAIL": "#c8323c", "ERROR": "#777777"}
"""By verdict, from the best to what proves nothing; the legend and the first panel keep this order."""
_UNKNOWN = "#222222"
PLAIN, SPECULATIVE, TRAINING, STANDALONE = "#8d99ae", "#e76f51", "#6c8ebf", "#1d3557"
_SPEEDUP = ("bench.speedup", "bench.speedup_low", "bench.speedup_high")
_SPEEDS = ("bench.baseline_tok_s", "bench.spec_tok_s")
_ACCEPTANCE = ("verify.accept_length", "bench.accept_length")

# Pixels.
_PANEL, _LINE, _GAP, _TOP, _BOTTOM = 300, 26, 105, 120, 70


@dataclass(frozen=True)
class Cell:
    """Where a panel stands in the grid, and what is drawn there of one run."""

    row: int
    col: int
    x: Callable[[PastRun], Any]
    y: Callable[[PastRun], Any]
    needs: tuple[str, ...]
    """Metrics that a run must have measured to be drawn."""
    hover: str
    """After the run's own lines."""

    def of(self, runs: Sequence[PastRun]) -> list[PastRun]:
        return [run for run in runs if all(name in run.metrics for name in self.needs)]


def _metric(name: str) -> Callable[[PastRun], float]:
    return lambda run: run.metrics[name]


def _began(run: PastRun) -> datetime:
    return run.began


def colour_of(verdict: str) -> str:
    """Of its points, its legend entry, and its word in the table."""
    return _COLOURS.get(verdict, _UNKNOWN)


def _rank(verdict: str) -> int:
    return [*_COLOURS, verdict].index(verdict)


def kind_of(run: PastRun) -> str:
    """The verdict with its kind: `FAIL not-faster`."""
    return f"{run.verdict} {run.kind}".strip()


_ENDED = Cell(1, 1, _began, kind_of, (), "")
_SPEED = Cell(2, 1, _began, _metric("bench.spec_tok_s"), _SPEEDS, "%{y:.1f} tok/s")
_ACCURACY = Cell(2, 2, _began, _metric("verify.accuracy_step0"), ("verify.accuracy_step0",), "accuracy %{y:.3f}")
_GAIN = Cell(3, 1, _began, _metric(_SPEEDUP[0]), _SPEEDUP, "speed-up %{y:.3f} (%{customdata[0]:.3f} to %{customdata[1]:.3f})")
_PREDICTED, _ANSWERED = _ACCEPTANCE
_SERVED = Cell(3, 2, _metric(_PREDICTED), _metric(_ANSWERED), _ACCEPTANCE, "predicted %{x:.3f}, served %{y:.3f}")
_TITLES = [
    "every run, by its verdict",
    "speed of the plain and the speculative server",
    "accuracy of the first draft step, held out",
    "speed-up with its 95% interval (dotted: no gain)",
    "tokens per verify round (dotted: served as predicted)",
]


def figure(runs: Sequence[PastRun]) -> Figure:
    """`runs`: of one target, at least one, in the order of time."""
    from plotly.subplots import make_subplots

    kinds = sorted({kind_of(run) for run in runs}, key=lambda kind: (_rank(kind.split()[0]), kind))
    heights = [_LINE * (len(kinds) + 1), _PANEL, _PANEL]
    whole = sum(heights) + 2 * _GAP
    made: Figure = make_subplots(
        rows=3,
        cols=2,
        specs=[[{"colspan": 2}, None], [{}, {}], [{}, {}]],
        row_heights=heights,
        vertical_spacing=_GAP / whole,
        horizontal_spacing=0.09,
        subplot_titles=_TITLES,
    )
    for cell, trace in _lines(runs):
        made.add_trace(trace, row=cell.row, col=cell.col)
    for cell in (_ENDED, _GAIN, _SERVED):
        for verdict in sorted({run.verdict for run in runs}, key=_rank):
            if shown := cell.of([run for run in runs if run.verdict == verdict]):
                made.add_trace(_points(cell, verdict, shown, len(runs)), row=cell.row, col=cell.col)
    for cell in (_ENDED, _SPEED, _ACCURACY, _GAIN, _SERVED):
        if champions := cell.of([run for run in runs if run.champion]):
            made.add_trace(_champions(cell, champions), row=cell.row, col=cell.col)
    _axes(made, runs, kinds)
    legend = {"orientation": "h", "yanchor": "bottom", "y": 1 + 45 / whole, "x": 0, "traceorder": "normal"}
    made.update_layout(template="plotly_white", height=whole + _TOP + _BOTTOM, legend=legend)
    made.update_layout(margin={"t": _TOP, "b": _BOTTOM, "l": 70, "r": 30}, hoverlabel={"align": "left", "namelength": 0})
    made.update_layout(font={"family": "system-ui, sans-serif", "size": 13})
    return made


def told(run: PastRun) -> str:
    """The run in a hover text."""
    return f"{run.name}<br>{kind_of(run)} in {run.stage or 'no stage'}{' (champion)' if run.champion else ''}"


def _lines(runs: Sequence[PastRun]) -> list[tuple[Cell, Scatter]]:
    return [
        (_SPEED, _line(runs, "bench.baseline_tok_s", "plain server", PLAIN, _SPEED.hover)),
        (_SPEED, _line(runs, "bench.spec_tok_s", "speculative server", SPECULATIVE, _SPEED.hover)),
        (_ACCURACY, _line(runs, "train.accuracy_step0", "accuracy in training", TRAINING, _ACCURACY.hover)),
        # Above the training's, where it should lie exactly: smaller, so that both are seen.
        (_ACCURACY, _line(runs, "verify.accuracy_step0", "standalone accuracy", STANDALONE, _ACCURACY.hover, smaller=3)),
    ]


def _size(runs: int) -> int:
    """Of a marker, in pixels: 200 of them share some 600."""
    return 10 if runs <= 30 else 7 if runs <= 100 else 5


def _line(runs: Sequence[PastRun], metric: str, name: str, colour: str, hover: str, smaller: int = 0) -> Scatter:
    from plotly.graph_objects import Scatter

    known = [run for run in runs if metric in run.metrics]
    return Scatter(
        x=[run.began for run in known],
        y=[run.metrics[metric] for run in known],
        name=name,
        mode="lines+markers",
        line={"color": colour, "width": 1},
        marker={"size": max(3, _size(len(runs)) - smaller)},
        text=[told(run) for run in known],
        hovertemplate=f"%{{text}}<br>{name}: {hover}<extra></extra>",
    )


def _points(cell: Cell, verdict: str, runs: Sequence[PastRun], of: int) -> Scatter:
    """The runs of one verdict; only those of the first panel, where every run is, stand in the legend."""
    from plotly.graph_objects import Scatter

    return Scatter(
        x=[cell.x(run) for run in runs],
        y=[cell.y(run) for run in runs],
        name=verdict,
        legendgroup=verdict,
        showlegend=cell is _ENDED,
        mode="markers",
        marker={"color": colour_of(verdict), "size": _size(of) + 1},
        error_y=_interval(runs, colour_of(verdict)) if cell is _GAIN else None,
        customdata=[[run.metrics[name] for name in _SPEEDUP[1:]] for run in runs] if cell is _GAIN else None,
        text=[told(run) for run in runs],
        hovertemplate=f"%{{text}}<br>{cell.hover}<extra></extra>",
    )


def _interval(runs: Sequence[PastRun], colour: str) -> dict[str, Any]:
    value, low, high = ([run.metrics[name] for run in runs] for name in _SPEEDUP)
    return {
        "type": "data",
        "symmetric": False,
        "array": [h - v for h, v in zip(high, value, strict=True)],
        "arrayminus": [v - w for v, w in zip(value, low, strict=True)],
        "color": colour,
        "thickness": 1,
        "width": 2,
    }


def _champions(cell: Cell, runs: Sequence[PastRun]) -> Scatter:
    """A star over the run's own point, which still answers to the mouse."""
    from plotly.graph_objects import Scatter

    return Scatter(
        x=[cell.x(run) for run in runs],
        y=[cell.y(run) for run in runs],
        name="champion",
        legendgroup="champion",
        showlegend=cell is _ENDED,
        mode="markers",
        marker={"symbol": "star", "size": 15, "color": "#ffd166", "line": {"color": "#222", "width": 1.5}},
        hoverinfo="skip",
    )


def _axes(made: Figure, runs: Sequence[PastRun], kinds: Sequence[str]) -> None:
    """Ranges are set: of a single run, plotly would show milliseconds around it."""
    first, last = runs[0].began, runs[-1].began
    beside = max((last - first) * 0.03, timedelta(hours=1))
    for cell in (_ENDED, _SPEED, _ACCURACY, _GAIN):
        place = {"row": cell.row, "col": cell.col}
        made.update_xaxes(type="date", range=[first - beside, last + beside], nticks=6, tickangle=0, title_text="time (UTC)", **place)
    made.update_xaxes(ticks="outside", ticklen=8, tickcolor="#fff")  # away from the lowest label of the other axis
    made.update_yaxes(categoryorder="array", categoryarray=kinds, range=[len(kinds) - 0.5, -0.5], automargin=True, row=1, col=1)
    made.update_yaxes(title_text="tok/s", range=_around([0.0], runs, _SPEEDS), row=2, col=1)
    made.update_yaxes(title_text="accuracy", range=[-0.03, 1.03], row=2, col=2)
    made.update_yaxes(title_text="plain time / speculative time", range=_around([1.0], runs, _SPEEDUP), row=3, col=1)
    made.add_hline(y=1, line_dash="dot", line_color="#999", row=3, col=1)
    ends = _around([], runs, _ACCEPTANCE)
    made.update_xaxes(title_text="predicted", range=ends, nticks=6, row=3, col=2)
    made.update_yaxes(title_text="served", range=ends, nticks=6, row=3, col=2)
    made.add_shape(type="line", x0=ends[0], y0=ends[0], x1=ends[1], y1=ends[1], line={"color": "#999", "dash": "dot"}, row=3, col=2)


def _around(always: Sequence[float], runs: Sequence[PastRun], metrics: Sequence[str]) -> list[float]:
    """A range that holds every value with room beside it."""
    values = [*always, *(run.metrics[name] for run in runs for name in metrics if name in run.metrics)] or [1.0]
    room = max(0.07 * (max(values) - min(values)), 0.03)
    return [min(values) - room, max(values) + room]
