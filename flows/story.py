"""A run told to a person: the table at its end, and the description on its page in MLflow."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table
from rich.text import Text

from flows.outcome import RunReport

_STYLES = {"PASS": "bold green", "WARN": "bold yellow"}


def rows(report: RunReport) -> list[tuple[str, str]]:
    """(what, how much) of everything that was measured."""
    measured = report.metrics
    told = [
        ("training accuracy (held out, by draft step)", _by_step(measured, "train")),
        ("standalone accuracy", _by_step(measured, "verify")),
        ("largest logit difference, trainer to standalone", _one(measured, "verify.max_logit_diff", "{:.2g}")),
        ("predicted acceptance (tokens per round)", _one(measured, "verify.accept_length", "{:.3f}")),
        ("served acceptance", _one(measured, "bench.accept_length", "{:.3f}")),
        ("draft steps chosen", _one(measured, "bench.steps", "{:.0f}")),
        ("plain server", _one(measured, "bench.baseline_tok_s", "{:.1f} tok/s")),
        ("speculative server", _one(measured, "bench.spec_tok_s", "{:.1f} tok/s")),
        ("speed-up (95% interval)", _interval(measured, "bench.speedup")),
        ("champion beside it", _one(measured, "bench.champion_tok_s", "{:.1f} tok/s")),
        ("candidate / champion (95% interval)", _interval(measured, "bench.over_champion")),
        ("identical greedy texts", _identical(measured)),
    ]
    return [(what, value) for what, value in told if value]


def table(report: RunReport) -> Table:
    """For the terminal."""
    made = Table(title="What was trained is what is served" if not report.exit_status else None, show_header=False)
    for what, value in rows(report):
        made.add_row(what, value)
    kind = f" [{report.kind}]" if report.kind else ""
    made.add_section()
    # Text, not str: rich takes `[…]` in a str for markup.
    made.add_row("verdict", Text(f"{report.verdict}{kind}"), style=_STYLES.get(report.verdict, "bold red"))
    return made


def describe(report: RunReport) -> str:
    """Markdown: the verdict, the figures, every check that is no PASS."""
    kind = f" `{report.kind}`" if report.kind else ""
    lines = [f"## {report.verdict}{kind} in {report.stage}", "", report.message, ""]
    if measured := rows(report):
        lines += ["| | |", "|---|---|", *(f"| {what} | {value} |" for what, value in measured), ""]
    notable = [check for check in report.checks if check.verdict != "PASS"]
    lines += [f"- **{check.verdict}** {check.name}: {check.message}" for check in notable]
    lines += ["", f"{len(report.checks)} checks, all in `verdict.json`; the configuration is in `config.yaml`."]
    if report.drafter:
        lines += ["", f"Drafter: `{report.drafter}`"]
    return "\n".join(lines)


def _by_step(measured: Mapping[str, float], stage: str) -> str:
    names = sorted(name for name in measured if name.startswith(f"{stage}.accuracy_step"))
    return "  ".join(f"{measured[name]:.3f}" for name in names)


def _one(measured: Mapping[str, float], name: str, form: str) -> str:
    return form.format(measured[name]) if name in measured else ""


def _interval(measured: Mapping[str, float], name: str) -> str:
    if name not in measured:
        return ""
    return f"{measured[name]:.3f} ({measured[f'{name}_low']:.3f} to {measured[f'{name}_high']:.3f})"


def _identical(measured: Mapping[str, float]) -> str:
    if "bench.identical" not in measured:
        return ""
    return f"{measured['bench.identical']:.0f} of {measured['bench.compared']:.0f}"
