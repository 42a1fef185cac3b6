"""The history as one HTML page that needs no network: for each target its runs over time, plotted and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING

from flows.history_figure import colour_of, figure, kind_of

if TYPE_CHECKING:
    from tasks.ledger.history import PastRun

_COLUMNS = {
    "verify.accuracy_step0": "accuracy",
    "verify.accept_length": "predicted",
    "bench.accept_length": "served",
    "bench.baseline_tok_s": "plain tok/s",
    "bench.spec_tok_s": "speculative tok/s",
    "bench.speedup": "speed-up",
}
_STYLE = """<style>
body { font: 15px/1.5 system-ui, sans-serif; margin: 1.5rem; color: #222 }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
td, th { padding: .2rem .7rem; text-align: right; border-bottom: 1px solid #ddd; white-space: nowrap }
th { position: sticky; top: 0; background: #fff }
td:first-child, th:first-child, .words { text-align: left } .verdict { font-weight: 600 }
</style>"""


def page(runs: Sequence[PastRun]) -> str:
    """One section per target; within one the plots are in the order of time, and the table begins with the newest run."""
    by_target = groupby(sorted(runs, key=lambda run: (run.target, run.began)), key=lambda run: run.target)
    sections = [_section(target, list(of_target), first=i == 0) for i, (target, of_target) in enumerate(by_target)]
    body = "\n".join(sections) or "<p>No pipeline run has ended with a verdict yet.</p>"
    head = f"<meta charset='utf-8'><title>Draftproof history</title>{_STYLE}"
    return f"<!doctype html><html lang='en'><head>{head}</head><body>{body}</body></html>"


def _section(target: str, runs: list[PastRun], *, first: bool) -> str:
    """The first one brings the plotting library for all."""
    plots = figure(runs).to_html(include_plotlyjs=first, full_html=False, config={"displaylogo": False, "responsive": True})
    return f"<section><h2>{escape(target)}</h2><p>{_summary(runs)}</p>{plots}{_table(runs[::-1])}</section>"


def _summary(runs: list[PastRun]) -> str:
    champion = next((run for run in runs if run.champion), None)
    told = f"champion: run {escape(champion.name)}" if champion else "no champion"
    return f"{len(runs)} run{'s' if len(runs) != 1 else ''}, {told}"


def _table(runs: list[PastRun]) -> str:
    heads = "".join(f"<th>{escape(name)}</th>" for name in ("run", *_COLUMNS.values()))
    rows = "".join(_row(run) for run in runs)
    words = "<th class='words'>verdict</th><th class='words'>stage</th>"
    return f"<table><thead><tr>{heads}{words}</tr></thead><tbody>{rows}</tbody></table>"


def _row(run: PastRun) -> str:
    cells = "".join(f"<td>{run.metrics[name]:.4g}</td>" if name in run.metrics else "<td>–</td>" for name in _COLUMNS)
    verdict = f"<td class='words verdict' style='color:{colour_of(run.verdict)}'>{escape(kind_of(run))}</td>"
    return f"<tr><td>{escape(run.name)}{' ★' * run.champion}</td>{cells}{verdict}<td class='words'>{escape(run.stage)}</td></tr>"
