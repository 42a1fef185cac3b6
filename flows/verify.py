"""`draftproof verify`: any EAGLE-3 checkpoint on disk, against its target, without training data, told at the terminal."""

from __future__ import annotations

import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from flows.progress import watch
from flows.run import reported
from flows.session import Watched
from flows.verification import Asked, Verified, keep, verify_checkpoint
from tasks.verdict import Check, DraftproofError, Outcome

if TYPE_CHECKING:
    from tasks.verify import Verification

_STYLES = {Outcome.PASS: "green", Outcome.WARN: "yellow"}
_HYPOTHESES = 5


def verify_here(checkpoint: Path, target: str, prompts: Path | None, json: Path | None) -> int:
    """The exit status. Whatever happens, short of a signal, `json` is written."""

    @cache
    def verified() -> Verified:
        with watch(["verify"]) as display, Watched("verify", display) as listener:
            return verify_checkpoint(Asked(checkpoint.resolve(), target, prompts), listener)

    return reported(
        lambda: verified().report(_kept(verified())),
        json,
        stage="verify",
        drafter=checkpoint,
        tell=lambda report: _tell(verified().found, report.mlflow_run_id),
    )


def _kept(verified: Verified) -> str | None:
    """Verification needs no MLflow: where there is none, or none that answers, nothing is kept there."""
    try:
        return keep(verified) if find_spec("mlflow") else None
    except DraftproofError as error:
        print(f"draftproof: the verification is not in MLflow: {error}", file=sys.stderr)
        return None


def _tell(found: Verification, run_id: str | None) -> None:
    console = Console()
    table = Table(show_header=False, box=None)
    for check in found.verdict.checks:
        table.add_row(*row(check))
    for prediction in found.predictions:
        accept = prediction.accept_length
        interval = f"{accept.value:.3f} ({accept.low:.3f} to {accept.high:.3f})"
        table.add_row("", f"predicted acceptance, {prediction.steps} steps", interval)
    console.print(table)
    if found.diagnosis and found.diagnosis.hypotheses:
        console.print(_hypotheses(found))
    kind = f" [{found.verdict.kind}]" if found.verdict.kind else ""
    console.print(Text(f"{found.verdict.verdict}{kind}: {found.verdict.message}", style="bold"))
    if found.verdict.hypothesis:
        console.print(Text(f"mis-wiring: {found.verdict.hypothesis}", style="bold"))
    if run_id:
        console.print(Text(f"report.md and plot.html are in MLflow, run {run_id}", style="dim"))


def row(check: Check) -> tuple[Text, str, Text]:
    """A check as a row of a table."""
    return Text(check.verdict, style=_STYLES.get(check.verdict, "red")), check.name, Text(check.message)


def _hypotheses(found: Verification) -> Table:
    """The best ones: all are in the report."""
    assert found.diagnosis is not None
    score = "logit difference" if found.diagnosis.method == "logits" else "gain, nats per token"
    table = Table("", "mis-wiring", "kind", score, box=None)
    for tried in found.diagnosis.hypotheses[:_HYPOTHESES]:
        table.add_row("fits" if tried.fits else "", Text(tried.name), tried.kind, f"{tried.score:.3g}")
    return table
