"""The history as one HTML page that needs no network: accuracy against speed over time, for each target."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tasks.ledger.history import PastRun

_COLOURS = {"PASS": "#2a9d3f", "WARN": "#d99a00", "INVALID": "#8a6fc0", "FAIL": "#c8323c", "ERROR": "#777777"}
_STEP = "verify.accuracy_step0"


def page(runs: Sequence[PastRun]) -> str:
    """One section per target; `runs` in the order of time."""
    by_target = groupby(sorted(runs, key=lambda run: (run.target, run.began)), key=lambda run: run.target)
    sections = [_section(target, list(of_target), first=i == 0) for i, (target, of_target) in enumerate(by_target)]
    body = "\n".join(sections) or "<p>No pipeline run has ended with a verdict yet.</p>"
    head = f"<meta charset='utf-8'><title>Draftproof history</title>{_STYLE}"
    return f"<!doctype html><html lang='en'><head>{head}</head><body>{body}</body></html>"


_STYLE = """<style>
body { font: 15px/1.5 system-ui, sans-serif; margin: 1.5rem; color: #222 }
table { border-collapse: collapse } td, th { padding: .2rem .7rem; text-align: right; border-bottom: 1px solid #ddd }
td:first-child, th:first-child { text-align: left } .verdict { font-weight: 600 }
</style>"""


def _section(target: str, runs: list[PastRun], *, first: bool) -> str:
    figure = _figure(runs).to_html(include_plotlyjs=first, full_html=False)
    return f"<h2>{escape(target)}</h2><p>{_summary(runs)}</p>{figure}{_table(runs[::-1])}"


def _summary(runs: list[PastRun]) -> str:
    champion = next((run for run in runs if run.champion), None)
    told = f"champion: run {escape(champion.name)}" if champion else "no champion"
    return f"{len(runs)} run{'s' if len(runs) != 1 else ''}, {told}"


def _figure(runs: list[PastRun]) -> Any:
    from plotly.graph_objects import Figure
    from plotly.subplots import make_subplots

    titles = ["tok/s and accuracy of the first draft step", "served against predicted acceptance", "speed-up, 95% interval"]
    figure: Figure = make_subplots(rows=1, cols=3, subplot_titles=titles, specs=[[{"secondary_y": True}, {}, {}]])
    for trace in _speeds(runs):
        figure.add_trace(trace, row=1, col=1)
    figure.add_trace(_over_time(runs, _STEP, "accuracy", color="#3465a4", dash="dot"), row=1, col=1, secondary_y=True)
    figure.add_trace(_acceptance(runs), row=1, col=2)
    if diagonal := _diagonal(runs):
        figure.add_trace(diagonal, row=1, col=2)
    figure.add_trace(_speedups(runs), row=1, col=3)
    figure.add_hline(y=1, line_dash="dot", line_color="#999", row=1, col=3)
    figure.update_yaxes(title_text="tok/s", rangemode="tozero", row=1, col=1, secondary_y=False)
    figure.update_yaxes(title_text="accuracy", range=[0, 1], row=1, col=1, secondary_y=True)
    figure.update_xaxes(title_text="predicted", row=1, col=2)
    figure.update_yaxes(title_text="served", row=1, col=2)
    figure.update_layout(template="plotly_white", height=420, margin={"t": 60, "b": 80}, legend={"orientation": "h", "y": -0.25})
    return figure


def _with(runs: list[PastRun], *names: str) -> list[PastRun]:
    return [run for run in runs if all(name in run.metrics for name in names)]


def _over_time(runs: list[PastRun], metric: str, name: str, *, color: str, dash: str = "solid") -> Any:
    from plotly.graph_objects import Scatter

    known = _with(runs, metric)
    return Scatter(
        x=[run.began for run in known],
        y=[run.metrics[metric] for run in known],
        name=name,
        mode="lines+markers",
        line={"color": color, "dash": dash},
        marker={"size": 6},
        text=[_told(run) for run in known],
        hovertemplate="%{text}<br>%{y:.3f}",
    )


def _speeds(runs: list[PastRun]) -> list[Any]:
    return [
        _over_time(runs, "bench.baseline_tok_s", "plain", color="#999999"),
        _over_time(runs, "bench.spec_tok_s", "speculative", color="#e76f51"),
    ]


def _points(runs: list[PastRun], x: list[Any], y: list[float], name: str, **more: Any) -> Any:
    """Coloured by verdict, champions as stars."""
    from plotly.graph_objects import Scatter

    marker = {
        "color": [_COLOURS.get(run.verdict, "#777777") for run in runs],
        "symbol": ["star" if run.champion else "circle" for run in runs],
        "size": [14 if run.champion else 8 for run in runs],
    }
    return Scatter(x=x, y=y, name=name, mode="markers", marker=marker, text=[_told(run) for run in runs], showlegend=False, **more)


def _acceptance(runs: list[PastRun]) -> Any:
    known = _with(runs, "verify.accept_length", "bench.accept_length")
    predicted, served = ([run.metrics[f"{stage}.accept_length"] for run in known] for stage in ("verify", "bench"))
    return _points(known, predicted, served, "acceptance", hovertemplate="%{text}<br>predicted %{x:.3f}, served %{y:.3f}")


def _diagonal(runs: list[PastRun]) -> Any:
    from plotly.graph_objects import Scatter

    known = _with(runs, "verify.accept_length", "bench.accept_length")
    if not known:
        return None
    values = [run.metrics[f"{stage}.accept_length"] for run in known for stage in ("verify", "bench")]
    ends = [min(values) * 0.97, max(values) * 1.03]
    return Scatter(x=ends, y=ends, mode="lines", line={"color": "#bbb", "dash": "dot"}, showlegend=False, hoverinfo="skip")


def _speedups(runs: list[PastRun]) -> Any:
    known = _with(runs, "bench.speedup", "bench.speedup_low", "bench.speedup_high")
    values = [run.metrics["bench.speedup"] for run in known]
    error = {
        "type": "data",
        "symmetric": False,
        "array": [run.metrics["bench.speedup_high"] - run.metrics["bench.speedup"] for run in known],
        "arrayminus": [run.metrics["bench.speedup"] - run.metrics["bench.speedup_low"] for run in known],
        "color": "#bbb",
    }
    return _points(known, [run.began for run in known], values, "speed-up", error_y=error, hovertemplate="%{text}<br>%{y:.3f}")


def _told(run: PastRun) -> str:
    kind = f" [{run.kind}]" if run.kind else ""
    return f"{run.name}: {run.verdict}{kind}{' (champion)' if run.champion else ''}"


def _table(runs: list[PastRun]) -> str:
    names = {_STEP: "accuracy", "verify.accept_length": "predicted", "bench.accept_length": "served", "bench.baseline_tok_s": "plain tok/s"}
    names |= {"bench.spec_tok_s": "speculative tok/s", "bench.speedup": "speed-up"}
    heads = "".join(f"<th>{escape(name)}</th>" for name in ("run", *names.values(), "verdict", "stage"))
    rows = []
    for run in runs:
        cells = "".join(f"<td>{run.metrics[name]:.3g}</td>" if name in run.metrics else "<td>–</td>" for name in names)
        colour = _COLOURS.get(run.verdict, "#777777")
        kind = f" {escape(run.kind)}" if run.kind else ""
        star = " ★" if run.champion else ""
        rows.append(
            f"<tr><td>{escape(run.name)}{star}</td>{cells}<td class='verdict' style='color:{colour}'>{run.verdict}{kind}</td>"
            f"<td>{escape(run.stage)}</td></tr>"
        )
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
