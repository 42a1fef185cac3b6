"""`draftproof verify --server`: a server as it is found in production, against the drafter that it should be serving."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from flows.outcome import RunReport, write_json
from flows.progress import watch
from flows.session import Watched
from flows.verification import BUILTIN_PROMPTS, Asked
from flows.verify import row
from tasks.report import Report
from tasks.store import Store
from tasks.verdict import BadInput, Check, DraftproofError, Verdict

if TYPE_CHECKING:
    from tasks.deploy.attached import AttachedServer
    from tasks.wiring.target import TargetForward

_PROMPTS, _ANSWER_TOKENS, _LONGEST_PROMPT = 16, 48, 1024
_REQUEST_SECONDS = 300.0
# As `promote.served_tolerance`'s default; there is no config here.
_TOLERANCE = 0.05


@dataclass(frozen=True)
class Found:
    """A speculative server that runs already, and a plain one of the same target, if there is one."""

    asked: Asked
    server: str
    plain: str | None = None


def verify_server_here(found: Found, json: Path | None) -> int:
    """The exit status. Whatever happens, short of a signal, `json` is written."""
    try:
        with watch(["verify"]) as display, Watched("verify", display) as listener:
            report = verify_server(found, listener)
    except DraftproofError as error:
        write_json(json, RunReport.of_error(error, "deploy", drafter=found.asked.checkpoint))
        raise
    except Exception as error:
        write_json(json, RunReport.of_fault(error))
        raise
    write_json(json, report)
    _tell(report)
    return report.exit_status


def verify_server(found: Found, report: Report) -> RunReport:
    """Ask the server, and compare. It is sent ordinary greedy requests one after another, and never ended.

    Raises BadInput (no such folder, prompts, target or server) and MachineTrouble.
    """
    from tasks.data import read_prompts
    from tasks.deploy.running import check_running
    from tasks.target import open_target, prepare_target

    asked = found.asked
    if not asked.checkpoint.is_dir():
        raise BadInput(str(asked.checkpoint), found="no folder", expected="the folder of an EAGLE-3 drafter", do="Name the checkpoint.")
    with _attached(found.server) as server, ExitStack() as stack:
        plain = stack.enter_context(_attached(found.plain)) if found.plain else None
        info = server.info()
        product = prepare_target(asked.target_config, store=Store(), report=report)
        checks = check_running(info, target=product.folder, checkpoint=asked.checkpoint)
        prompts = read_prompts(asked.prompts or BUILTIN_PROMPTS, target=product, count=_PROMPTS, longest=_LONGEST_PROMPT)
        target = open_target(product, device=asked.device, dtype="float32")
        checks += _compared(asked, target, server, plain, info, prompts, report)
    numbers = next((check.numbers for check in checks if check.name == "served acceptance"), {})
    verdict = Verdict.of(
        "deploy",
        checks,
        passed="the server was launched as it should be, and accepts what the drafter alone predicts",
        hypothesis=numbers.get("hypothesis"),
    )
    named = {"served.accept_length": "served", "verify.accept_length": "predicted"}
    metrics = {name: float(numbers[key]) for name, key in named.items() if key in numbers}
    return RunReport.of_verdict(verdict, drafter=asked.checkpoint, target=product.folder, metrics=metrics)


def _compared(
    asked: Asked,
    target: TargetForward,
    server: AttachedServer,
    plain: AttachedServer | None,
    info: dict[str, Any],
    prompts: list[list[int]],
    report: Report,
) -> list[Check]:
    from tasks.device import place
    from tasks.verify.found import check_found, check_lossless
    from tasks.verify.served import Served
    from tasks.verify.tree import Shape

    answers = []
    for number, prompt in enumerate(prompts, 1):
        answers.append(server.generate(prompt, _ANSWER_TOKENS))
        report.progress(number, len(prompts), "prompts answered")
    exact = info.get("dtype") == "float32" and info.get("kv_cache_dtype") in ("auto", "float32")
    steps = int(info.get("speculative_num_steps") or 1)
    checks = check_found(
        asked.checkpoint,
        target,
        [Served(prompt, answer.tokens, answer.verify_rounds, answer.right_drafts) for prompt, answer in zip(prompts, answers, strict=True)],
        shape=Shape(steps, int(info.get("speculative_eagle_topk") or 1), int(info.get("speculative_num_draft_tokens") or steps + 1)),
        exact=exact,
        tolerance=_TOLERANCE,
        device=place(asked.device, "float32").device,
        report=report,
    )
    if plain is not None:
        twice = [[plain.generate(prompt, _ANSWER_TOKENS).tokens for prompt in prompts] for _ in range(2)]
        checks.append(check_lossless(target, prompts, *twice, [answer.tokens for answer in answers], exact=exact))
    return checks


@contextmanager
def _attached(url: str) -> Iterator[AttachedServer]:
    from tasks.deploy import attach_server

    with attach_server(url, request_seconds=_REQUEST_SECONDS) as server:
        yield server


def _tell(report: RunReport) -> None:
    console, table = Console(), Table(show_header=False, box=None)
    for check in report.checks:
        table.add_row(*row(check))
    console.print(table)
    kind = f" [{report.kind}]" if report.kind else ""
    console.print(Text(f"{report.verdict}{kind}: {report.message}", style="bold"))
    if report.hypothesis:
        console.print(Text(f"mis-wiring: {report.hypothesis}", style="bold"))
