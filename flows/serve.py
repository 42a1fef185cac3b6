"""`draftproof deploy`: the champion with the setting that it was measured with, proved and left running."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.config import Config, load
from tasks.store import Store, home, write_atomic
from tasks.verdict import BadInput, Check, ProofFailed

if TYPE_CHECKING:
    from tasks.deploy.records import ServerRecord
    from tasks.promote import Promotion, Release

_ALIASES = ("champion", "challenger")
_WHERE = ("host", "port", "python", "api_key_env")
# Temperature 0: speculation on a CPU is greedy, and says so rather than to ignore another one.
_QUESTION = {"messages": [{"role": "user", "content": "What does len do?"}], "model": "any", "temperature": 0, "max_tokens": 64}


class Lines:
    """A `Report` that prints what is said."""

    def progress(self, *_: object, **__: object) -> None:
        return None

    def metrics(self, *_: object, **__: object) -> None:
        return None

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


def start_here(what: str) -> int:
    """Start, prove, print the address, leave it running."""
    model, alias, config = _named(what)
    release, promotion = _release(model, alias)
    steps = release.steps
    if steps is None:
        raise BadInput(what, found=promotion.reason, expected="a drafter that was measured", do="Deploy the champion.")
    running = _running(model)
    if running is not None and (running.drafter, running.steps) == (release.drafter, steps):
        print(f"{model} version {promotion.version} runs already: {running.url}")
        return 0
    if running is not None:
        raise BadInput(what, found=f"another version at {running.url}", expected="none that runs", do=f"draftproof deploy {model} --stop")
    _start(release, promotion, steps, config)
    return 0


def stop_here(what: str | None) -> int:
    """Stop the server of a model, or all that were left running."""
    from tasks.deploy.kept import stop_kept

    url = None
    if what is not None:
        model, _, _ = _named(what)
        server = _running(model)
        if server is None:
            raise BadInput(
                what, found="no server of it that was left running", expected="a model that is served", do="See draftproof deploy."
            )
        url = server.url
    for record in stop_kept(url):
        print(f"stopped {record.url}")
    return 0


def _start(release: Release, promotion: Promotion, steps: int, config: Config | None) -> None:
    """A server that is released only after the proof. Raises ProofFailed when it is not what was promoted."""
    from flows.servers import keep_contract
    from tasks.deploy import start_server

    report = Lines()
    target = _same_target(release, report)
    settings = release.deploy
    if config is not None:  # where it runs is the config's business, how it runs is what was measured
        settings = settings.model_copy(update={name: getattr(config.deploy, name) for name in _WHERE})
    log = home() / "served" / f"{release.model}.log"
    checks: list[Check] = []
    with start_server(settings, target=target, drafter=release.drafter, steps=steps, log=log, report=report, keep=True) as server:
        keep_contract(checks, server.contract, server=f"server with {steps} steps")
        write_atomic(_note(release.model), server.url)
    print(f"{release.model} version {promotion.version} ({promotion.alias}), {steps} draft steps, {len(checks)} launch checks passed")
    print(f"drafter and target are the promoted files: SHA-256 {promotion.files_sha256[:16]}… and {release.target_sha256[:16]}…")
    print(f"address: {server.url}")
    key = f' -H "Authorization: Bearer ${settings.api_key_env}"' if settings.api_key_env else ""
    print(f"ask it: curl {server.url}/v1/chat/completions{key} -H 'content-type: application/json' -d '{json.dumps(_QUESTION)}'")
    print(f"log: {log}")
    print(f"stop it with: draftproof deploy {release.model} --stop")


def _same_target(release: Release, report: Lines) -> Path:
    """The target's folder, with the fingerprint that the drafter was promoted with."""
    from tasks.target import prepare_target
    from tasks.verdict import Outcome, Verdict
    from tasks.wiring.kinds import Kind

    product = prepare_target(release.target, store=Store(), report=report)
    if product.sha256 != release.target_sha256:
        message = (
            f"the target {product.folder} has fingerprint {product.sha256[:16]}…, the drafter was promoted with "
            f"{release.target_sha256[:16]}…. Restore the target, or train a drafter for the new one."
        )
        check = Check(name="promoted target", verdict=Outcome.FAIL, kind=Kind.TENSORS, message=message)
        raise ProofFailed(Verdict.of("deploy", [check], passed=""))
    return product.folder


def _named(what: str) -> tuple[str, str, Config | None]:
    """(model, alias, config) of `CONFIG` or `MODEL[@ALIAS]`."""
    if what.endswith((".yaml", ".yml")) or Path(what).is_file():
        config = load(Path(what))
        return f"{config.target.name}-eagle3", "champion", config
    model, _, alias = what.partition("@")
    if alias and alias not in _ALIASES:
        raise BadInput(what, found=f"alias {alias!r}", expected=" or ".join(_ALIASES), do="Name one of them.")
    return model, alias or "champion", None


def _release(model: str, alias: str) -> tuple[Release, Promotion]:
    from tasks.ledger.store import connect, tracking_uri, usable
    from tasks.promote import find_release

    client = connect()
    with usable(tracking_uri()):
        return find_release(client, model, alias)


def _running(model: str) -> ServerRecord | None:
    """The kept server that the model's note names, if it still runs."""
    from tasks.deploy.kept import kept_servers

    try:
        url = _note(model).read_text(encoding="utf-8")
    except OSError:
        return None
    return next((record for record in kept_servers() if record.url == url), None)


def _note(model: str) -> Path:
    return home() / "served" / f"{model}.url"
