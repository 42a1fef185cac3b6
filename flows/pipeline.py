"""A whole run: the ledger around the chain, and what is written at the end however it ends."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Collection, Mapping
from pathlib import Path

import yaml

from flows.chain import Chain
from flows.changes import News, setup_tag, skipped
from flows.history_page import page
from flows.outcome import RunReport
from flows.progress import Watcher
from flows.servers import keep_logs
from flows.session import Session, Watched
from flows.story import charts, describe, purpose, title
from tasks.config import Config
from tasks.ledger import Ledger, Run, open_ledger
from tasks.ledger.history import read_history
from tasks.ledger.regression import regressions
from tasks.promote.task import promotion
from tasks.store import Store, home, machine
from tasks.verdict import DraftproofError, ProofFailed, Verdict

_PROJECT = Path(__file__).resolve().parent.parent


def run_pipeline(
    config: Config, *, refresh: Collection[str], watcher: Watcher, flow_run_id: str, only_if_changed: bool = False
) -> RunReport:
    """Run every stage, and write verdict, figures and description to MLflow whatever the verdict is.

    With `only_if_changed` nothing is run, and the report says so, where all is as when the last drafter was measured;
    a stage to be done again (`refresh`) is a reason of its own.
    Bad input, the machine's trouble and a broken proof are in the report; anything else is raised, after the
    runs were closed. Raises DraftproofError only where no run could be opened in the ledger.
    """
    ledger = open_ledger(config.target.name)
    tags = {"draftproof.commit": commit(), "draftproof.flow_run_id": flow_run_id, **setup_tag(config)}
    with machine(Watched("environment", watcher).say):
        if only_if_changed and not refresh and (news := _news(ledger, config, watcher)):
            if not news.anything:
                return skipped(ledger, news, tags)
            tags["draftproof.because"] = news.message
        return _run(ledger, config, Store(refresh=frozenset(refresh)), watcher, tags)


def _run(ledger: Ledger, config: Config, store: Store, watcher: Watcher, tags: Mapping[str, str]) -> RunReport:
    began = time.strftime("%Y-%m-%d %H:%M:%S")
    with ledger.run(began, tags) as run:
        run.describe(purpose(config))
        run.params(config.model_dump(mode="json"))
        run.text("config.yaml", yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False))
        session = Session(run, watcher, store)
        logs = home() / "runs" / run.id
        chain = Chain(config, session, store, logs)
        report = _conclude(chain, session, ledger)
        run.rename(f"{title(report)} {began}")
        run.describe(f"{describe(report)}\n\n{purpose(config)}")  # the page shows the first lines alone until it is asked for more
        _write(run, report, logs)
    _tell_history(ledger, run)
    return report


def _news(ledger: Ledger, config: Config, watcher: Watcher) -> News | None:
    """None where target or data cannot be read: the run itself will say why, as that stage."""
    report = Watched("environment", watcher)
    try:
        news = News.of(ledger, config, store=Store(), report=report)
    except DraftproofError:
        return None
    report.say(news.message)
    return news


def _conclude(chain: Chain, session: Session, ledger: Ledger) -> RunReport:
    """The chain's verdict, or what stopped it; a drafter that exists is registered either way."""
    verdict: Verdict | None
    try:
        verdict = against_earlier(_proved(chain), chain, session, ledger)
        outcome = RunReport.of_verdict(verdict)
    except DraftproofError as error:
        verdict = None
        outcome = RunReport.of_error(error, session.current).model_copy(update={"checks": chain.checks})
    outcome = _promoted(chain, session, ledger, outcome, verdict)
    return outcome.model_copy(
        update={
            "drafter": chain.drafter.folder if chain.drafter else None,
            "target": chain.target.folder if chain.target else None,
            "mlflow_run_id": session.run.id,
            "metrics": session.headlines,
        }
    )


def _proved(chain: Chain) -> Verdict:
    """A broken link is a verdict too. Raises BadInput and MachineTrouble."""
    try:
        return chain.prove()
    except ProofFailed as error:
        return error.verdict.model_copy(update={"checks": [*chain.checks, *error.verdict.checks]})


def against_earlier(verdict: Verdict, chain: Chain, session: Session, ledger: Ledger) -> Verdict:
    """The verdict, with an alarm where this run's figures fell below those of earlier runs; a broken link keeps its own name."""
    with ledger.usable():
        earlier = read_history(ledger.client)
    checks = regressions(
        session.headlines,
        earlier,
        target_sha256=chain.target.sha256 if chain.target else "",
        host=socket.gethostname(),
        tolerance=chain.config.promote.regression_tolerance,
    )
    return verdict.also(checks)


def _promoted(chain: Chain, session: Session, ledger: Ledger, outcome: RunReport, verdict: Verdict | None) -> RunReport:
    release = chain.release()
    if verdict is None or release is None:
        return outcome
    try:
        with ledger.usable():
            made = promotion(
                session, client=ledger.client, experiment=ledger.experiment, run_id=session.run.id, release=release, verdict=verdict
            )
    except DraftproofError as error:
        session.watcher.say("promote", str(error))
        # Nothing was promoted: a passed proof has no champion to show for it.
        return outcome if outcome.exit_status else RunReport.of_error(error, "promote").model_copy(update={"checks": verdict.checks})
    if made.alias == "champion" and chain.config.promote.replace_server:
        return RunReport.of_verdict(verdict.also(chain.serving.take_over(ledger, made.model)))
    return outcome


def _write(run: Run, report: RunReport, logs: Path) -> None:
    run.tag({"draftproof.verdict": report.verdict, "draftproof.kind": report.kind or "", "draftproof.stage": report.stage})
    run.text("verdict.json", report.model_dump_json(indent=1))
    for step, values in charts(report.metrics).items():
        run.metrics(values, step)
    keep_logs(run, logs)
    if report.exit_status:
        run.fail()


def _tell_history(ledger: Ledger, run: Run) -> None:
    """All runs so far, this one with the verdict it has now, as a page beside it."""
    with ledger.usable():
        run.text("history.html", page(read_history(ledger.client)))


def commit() -> str:
    """Git commit of the project, `+changes` where files differ from it; `unknown` outside of a checkout of its own."""

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(_PROJECT), *arguments], capture_output=True, text=True, check=True, timeout=20
        ).stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")) != _PROJECT:
            return "unknown"  # unpacked inside of somebody else's repository
        return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return "unknown"
