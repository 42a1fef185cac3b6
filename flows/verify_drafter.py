"""`draftproof verify`: any EAGLE-3 checkpoint on disk, against its target, without training data, Prefect or MLflow."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from flows.outcome import RunReport, write_json
from flows.progress import watch
from flows.session import Watched
from tasks.config import BenchmarkConfig, Device, TargetConfig, VerifyConfig
from tasks.report import Report
from tasks.store import Store
from tasks.verdict import BadInput, Check, DraftproofError, Outcome

if TYPE_CHECKING:
    from tasks.verify import Verification

_PROMPTS = 32
_LONGEST_PROMPT = 1024  # tokens; a round over a longer one costs seconds on a CPU
_SHOWN = BenchmarkConfig()
_STYLES = {Outcome.PASS: "green", Outcome.WARN: "yellow"}


def verify_here(checkpoint: Path, target: str, prompts: Path | None, json: Path | None, *, device: Device = "auto") -> int:
    """The exit status. Whatever happens, short of a signal, `json` is written."""
    try:
        with watch(["verify"]) as display, Watched("verify", display) as listener:
            report, found = _verify(checkpoint.resolve(), target, prompts, device, listener)
    except DraftproofError as error:
        write_json(json, RunReport.of_error(error, "verify", drafter=checkpoint))
        raise
    write_json(json, report)
    _tell(found)
    return report.exit_status


def _verify(checkpoint: Path, source: str, prompts: Path | None, device: Device, report: Report) -> tuple[RunReport, Verification]:
    from tasks.data import read_prompts
    from tasks.target import open_target, prepare_target
    from tasks.verify import verify_drafter

    if not checkpoint.is_dir():
        raise BadInput(str(checkpoint), found="no folder", expected="the folder of an EAGLE-3 drafter", do="Name the exported checkpoint.")
    local = source if source.partition(":")[1] else str(Path(source).expanduser().resolve())
    product = prepare_target(TargetConfig(source=local, name="target"), store=Store(), report=report)
    found = verify_drafter(
        VerifyConfig(device=device),
        checkpoint=checkpoint,
        target=open_target(product, device=device, dtype="float32"),
        held_out=[],
        trainer_logits=None,
        trainer_steps=None,
        prompts=read_prompts(prompts, target=product, count=_PROMPTS, longest=_LONGEST_PROMPT) if prompts else [],
        max_new_tokens=_SHOWN.output_tokens,
        steps=_SHOWN.steps,
        report=report,
    )
    return RunReport.of_verdict(found.verdict, drafter=checkpoint, target=product.folder, metrics=found.metrics), found


def _tell(found: Verification) -> None:
    console = Console()
    table = Table(show_header=False, box=None)
    for check in found.verdict.checks:
        table.add_row(*_row(check))
    for prediction in found.predictions:
        accept = prediction.accept_length
        interval = f"{accept.value:.3f} ({accept.low:.3f} to {accept.high:.3f})"
        table.add_row("", f"predicted acceptance, {prediction.steps} steps", interval)
    console.print(table)
    kind = f" [{found.verdict.kind}]" if found.verdict.kind else ""
    console.print(Text(f"{found.verdict.verdict}{kind}: {found.verdict.message}", style="bold"))


def _row(check: Check) -> tuple[Text, str, Text]:
    return Text(check.verdict, style=_STYLES.get(check.verdict, "red")), check.name, Text(check.message)
