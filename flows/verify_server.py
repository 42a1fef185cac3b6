"""`draftproof verify --server`: a server as it is found in production, against the drafter that it should be serving."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from flows.outcome import RunReport
from flows.progress import watch
from flows.run import reported
from flows.session import Watched
from flows.verification import BUILTIN_PROMPTS, Asked
from flows.verify import row
from tasks.report import Report
from tasks.store import Store
from tasks.verdict import BadInput, Check, Verdict

if TYPE_CHECKING:
    from tasks.deploy.attached import AttachedServer
    from tasks.deploy.generation import Generation
    from tasks.wiring.target import TargetForward

_PROMPTS, _ANSWER_TOKENS, _LONGEST_PROMPT = 16, 48, 1024
_REQUEST_SECONDS = 300.0
# As `promote.served_tolerance`'s default; there is no config here.
_TOLERANCE = 0.05


@dataclass(frozen=True)
class Running:
    """A speculative server that runs already, and a plain one of the same target, if there is one."""

    asked: Asked
    server: str
    plain: str | None = None


def verify_server_here(running: Running, json: Path | None) -> int:
    """The exit status. Whatever happens, short of a signal, `json` is written."""

    def made() -> RunReport:
        with watch(["verify"]) as display, Watched("verify", display) as listener:
            return verify_server(running, listener)

    return reported(made, json, stage="deploy", drafter=running.asked.checkpoint, tell=_tell)


def verify_server(running: Running, report: Report) -> RunReport:
    """Ask the server, and compare. It is sent ordinary greedy requests one after another, and never ended.

    Raises BadInput (no such folder, prompts, target or server) and MachineTrouble.
    """
    from tasks.data import read_prompts
    from tasks.deploy import attach_server, check_running
    from tasks.target import open_target, prepare_target

    asked = running.asked
    if not asked.checkpoint.is_dir():
        raise BadInput(str(asked.checkpoint), found="no folder", expected="the folder of an EAGLE-3 drafter", do="Name the checkpoint.")
    with ExitStack() as stack:
        server = stack.enter_context(attach_server(running.server, request_seconds=_REQUEST_SECONDS))
        plain = stack.enter_context(attach_server(running.plain, request_seconds=_REQUEST_SECONDS)) if running.plain else None
        info = server.info()
        product = prepare_target(asked.target_config, store=Store(), report=report)
        checks = check_running(info, target=product.folder, checkpoint=asked.checkpoint)
        prompts = read_prompts(asked.prompts or BUILTIN_PROMPTS, target=product, count=_PROMPTS, longest=_LONGEST_PROMPT)
        target = open_target(product, device=asked.device, dtype="float32")
        exact = info.get("dtype") == "float32" and info.get("kv_cache_dtype") in ("auto", "float32")
        answers = _answers(server, prompts, report)
        checks += _acceptance(asked, target, info, prompts, answers, exact, report)
        if plain is not None:
            checks.append(_lossless(target, plain, prompts, answers, exact, report))
    return _report(asked, product.folder, checks)


def _answers(server: AttachedServer, prompts: Sequence[list[int]], report: Report) -> list[Generation]:
    answers = []
    for number, prompt in enumerate(prompts, 1):
        answers.append(server.generate(prompt, _ANSWER_TOKENS))
        report.progress(number, len(prompts), "prompts answered")
    return answers


def _acceptance(
    asked: Asked,
    target: TargetForward,
    info: dict[str, Any],
    prompts: Sequence[list[int]],
    answers: Sequence[Generation],
    exact: bool,
    report: Report,
) -> list[Check]:
    from tasks.device import place
    from tasks.verify import Served, check_running

    steps = int(info.get("speculative_num_steps") or 1)
    return check_running(
        asked.checkpoint,
        target,
        [Served(prompt, answer.tokens, answer.verify_rounds, answer.right_drafts) for prompt, answer in zip(prompts, answers, strict=True)],
        steps=steps,
        topk=int(info.get("speculative_eagle_topk") or 1),
        draft_tokens=int(info.get("speculative_num_draft_tokens") or steps + 1),
        exact=exact,
        tolerance=_TOLERANCE,
        device=place(asked.device, "float32").device,
        report=report,
    )


def _lossless(
    target: TargetForward,
    plain: AttachedServer,
    prompts: Sequence[list[int]],
    answers: Sequence[Generation],
    exact: bool,
    report: Report,
) -> Check:
    from tasks.verify import Texts, check_lossless

    once, again = (_answers(plain, prompts, report) for _ in range(2))
    texts = [Texts(p, a.tokens, b.tokens) for p, a, b in zip(prompts, once, answers, strict=True)]
    restless = sum(a.tokens != b.tokens for a, b in zip(once, again, strict=True))
    return check_lossless(target, texts, restless=restless, exact=exact)


def _report(asked: Asked, target: Path, checks: Sequence[Check]) -> RunReport:
    numbers = next((check.numbers for check in checks if check.name == "served acceptance"), {})
    verdict = Verdict.of(
        "deploy",
        checks,
        passed="the server was launched as it should be, and accepts what the drafter alone predicts "
        "(whether the drafter itself is right: draftproof verify without --server)",
        hypothesis=numbers.get("hypothesis"),
    )
    named = {"served.accept_length": "served", "verify.accept_length": "predicted"}
    metrics = {name: float(numbers[key]) for name, key in named.items() if key in numbers}
    return RunReport.of_verdict(verdict, drafter=asked.checkpoint, target=target, metrics=metrics)


def _tell(report: RunReport) -> None:
    console, table = Console(), Table(show_header=False, box=None)
    for check in report.checks:
        table.add_row(*row(check))
    console.print(table)
    kind = f" [{report.kind}]" if report.kind else ""
    console.print(Text(f"{report.verdict}{kind}: {report.message}", style="bold"))
    if report.hypothesis:
        console.print(Text(f"mis-wiring: {report.hypothesis}", style="bold"))
