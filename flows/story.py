"""A run told to a person: the table at its end, its name and description in MLflow, the tables of its page in Prefect."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table
from rich.text import Text

from flows.outcome import RunReport
from tasks.config import Config

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


def title(report: RunReport) -> str:
    """What stands before the time in the run's name, of which MLflow's list shows some 20 letters: how it ended, and what for."""
    if report.exit_status:
        return f"{report.verdict} {report.kind or ''}".strip()
    return f"{report.verdict} {report.metrics['bench.speedup']:.2f}×" if "bench.speedup" in report.metrics else report.verdict


def purpose(config: Config) -> str:
    """What a pipeline run is for, before its verdict is known."""
    train = f"trained for {config.train.epochs} epochs on {config.data.conversations:,} conversations"
    what = f"An EAGLE-3 drafter for **{config.target.name}** (`{config.target.source}`), {train}, proved, served and measured."
    return f"{what} Its configuration is in `config.yaml`."


def accuracy(measured: Mapping[str, float]) -> list[dict[str, str]]:
    """By draft step: in training, standalone, and standalone against the target's own token. Empty where none was measured."""
    columns = {
        "training": "train.accuracy_step",
        "standalone": "verify.accuracy_step",
        "standalone, target's own token": "verify.accuracy_full_step",
    }
    steps = sorted({int(name.removeprefix(stem)) for name in measured for stem in columns.values() if name.startswith(stem)})
    return [
        {"draft step": str(step), **{head: _one(measured, f"{stem}{step}", "{:.3f}") for head, stem in columns.items()}} for step in steps
    ]


def versus(measured: Mapping[str, float]) -> list[dict[str, str]]:
    """Plain against speculative. Empty where it was not measured."""
    if "bench.speedup" not in measured:
        return []
    heads = ("figure", "plain", "speculative", "compared")
    told = [
        (
            "output tokens per second",
            _one(measured, "bench.baseline_tok_s", "{:.1f}"),
            _one(measured, "bench.spec_tok_s", "{:.1f}"),
            f"speed-up {_interval(measured, 'bench.speedup')}",
        ),
        (
            "seconds per output token after the first",
            _one(measured, "bench.baseline_tpot", "{:.4f}"),
            _one(measured, "bench.spec_tpot", "{:.4f}"),
            "",
        ),
        (
            "tokens per verify round",
            "",
            _one(measured, "bench.accept_length", "{:.3f}"),
            _one(measured, "verify.accept_length", "predicted {:.3f}"),
        ),
        ("greedy texts", "", "", f"{_identical(measured)} identical"),
    ]
    return [dict(zip(heads, row, strict=True)) for row in told]


def charts(measured: Mapping[str, float]) -> dict[int, dict[str, float]]:
    """The figures that tell the story, by draft step, named so that MLflow draws them in sections: it groups by what is before a `/`."""
    names = {
        "acceptance/predicted": "verify.accept_length",
        "acceptance/served": "bench.accept_length",
        "speed/plain tok_s": "bench.baseline_tok_s",
        "speed/speculative tok_s": "bench.spec_tok_s",
        "speed/speed-up": "bench.speedup",
    }
    found = {0: {shown: measured[name] for shown, name in names.items() if name in measured}}
    for shown, stem in {"accuracy/training": "train.accuracy_step", "accuracy/standalone": "verify.accuracy_step"}.items():
        for step in (int(name.removeprefix(stem)) for name in measured if name.startswith(stem)):
            found.setdefault(step, {})[shown] = measured[f"{stem}{step}"]
    return found


def describe(report: RunReport) -> str:
    """Markdown: the verdict, the figures, every check that is no PASS."""
    kind = f" `{report.kind}`" if report.kind else ""
    lines = [f"## {report.verdict}{kind} in {report.stage}", "", report.message, ""]
    if measured := rows(report):
        lines += ["| | |", "|---|---|", *(f"| {what} | {value} |" for what, value in measured), ""]
    notable = [check for check in report.checks if check.verdict != "PASS"]
    lines += [f"- **{check.verdict}** {check.name}: {check.message}" for check in notable]
    lines += ["", f"{len(report.checks)} checks, all in `verdict.json`."]
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
