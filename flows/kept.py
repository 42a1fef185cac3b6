"""The one server of a model that stays: started and proved beside the one before it, which is ended only then."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.config import DeployConfig
from tasks.report import Report
from tasks.store import Store, home, locked, write_atomic
from tasks.verdict import BadInput, Check, DraftproofError, Outcome, ProofFailed, Verdict
from tasks.wiring.kinds import Kind

if TYPE_CHECKING:
    from tasks.deploy.records import ServerRecord
    from tasks.ledger import Ledger
    from tasks.promote import Promotion, Release

TAKE_OVER = "the kept server is replaced"


@dataclass(frozen=True)
class Kept:
    """A server that runs, and what it took."""

    url: str
    log: Path
    checks: list[Check]
    """Of its launch; none where it ran already."""
    ended: str | None
    """Address of the server that it took over from."""


def running(model: str) -> ServerRecord | None:
    """The kept server that the model's note names, if it still runs."""
    from tasks.deploy.kept import kept_servers

    try:
        url = _note(model).read_text(encoding="utf-8")
    except OSError:
        return None
    return next((record for record in kept_servers() if record.url == url), None)


def died(model: str) -> bool:
    """Whether a server of it was left running, was not stopped, and is gone."""
    return _note(model).is_file() and running(model) is None


def forget(model: str | None) -> None:
    """It is not served any more because somebody stopped it; None = every model."""
    for note in [_note(model)] if model else (home() / "served").glob("*.url"):
        note.unlink(missing_ok=True)


def keep(release: Release, promotion: Promotion, settings: DeployConfig, report: Report) -> Kept:
    """The server of a release, proved and left running; `settings` say where it runs.

    One that serves something else meanwhile goes on until the new one is proved, on another port, and noted; there has
    to be room for both. Raises ProofFailed, BadInput and MachineTrouble, and then the one before is still there.
    """
    from flows.servers import keep_contract
    from tasks.deploy import start_server
    from tasks.deploy.kept import serves

    steps = release.steps
    if steps is None:
        raise BadInput(release.model, found=promotion.reason, expected="a drafter that was measured", do="Deploy the champion.")
    log = home() / "served" / f"{release.model}-{promotion.version}.log"
    with locked(_note(release.model).with_suffix(".lock")):
        before = running(release.model)
        target = _same_target(release, report)
        if before is not None and serves(before, settings, target=target, drafter=release.drafter, steps=steps):
            return Kept(before.url, before.log, [], None)
        if before is not None and before.port == settings.port:
            settings = settings.model_copy(update={"port": None})
        checks: list[Check] = []
        with start_server(settings, target=target, drafter=release.drafter, steps=steps, log=log, report=report, keep=True) as server:
            keep_contract(checks, server.contract, server=f"server with {steps} steps")
        # Whoever is interrupted here leaves one server too many, never none.
        write_atomic(_note(release.model), server.url)
        if before is not None:
            before.end()
            report.say(f"{server.url} took over from {before.url}, which is stopped")
    return Kept(server.url, log, checks, before.url if before else None)


def take_over(ledger: Ledger, model: str, report: Report) -> list[Check]:
    """The champion in place of the server that is kept of its model: what came of it; nothing where none is kept.

    A fault leaves the server before as it was, and is a WARN: the drafter is proved and promoted all the same.
    """
    from tasks.promote import find_release

    before = running(model)
    if before is None:
        report.say(f"no server of {model} is kept: nothing to replace")
        return []
    try:
        with ledger.usable():
            release, made = find_release(ledger.client, model)
        now = keep(release, made, release.deploy, report)
    except DraftproofError as error:
        message = f"{before.url} goes on serving the drafter before: {error} Then: draftproof deploy {model}."
        return [Check(name=TAKE_OVER, verdict=Outcome.WARN, message=message, stage="promote")]
    return [Check(name=TAKE_OVER, verdict=Outcome.PASS, message=f"{now.url} serves version {made.version}", stage="promote")]


def _same_target(release: Release, report: Report) -> Path:
    """The target's folder, with the fingerprint that the drafter was promoted with."""
    from tasks.target import prepare_target

    product = prepare_target(release.target, store=Store(), report=report)
    if product.sha256 != release.target_sha256:
        message = (
            f"the target {product.folder} has fingerprint {product.sha256[:16]}…, the drafter was promoted with "
            f"{release.target_sha256[:16]}…. Restore the target, or train a drafter for the new one."
        )
        check = Check(name="promoted target", verdict=Outcome.FAIL, kind=Kind.TENSORS, message=message)
        raise ProofFailed(Verdict.of("deploy", [check], passed=""))
    return product.folder


def _note(model: str) -> Path:
    return home() / "served" / f"{model}.url"
