"""`draftproof deploy`: the champion with the setting that it was measured with, proved and left running."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from flows.kept import forget, keep, running
from tasks.config import Config, load
from tasks.verdict import BadInput

if TYPE_CHECKING:
    from tasks.promote import Promotion, Release

_ALIASES = ("champion", "challenger")
_WHERE = ("host", "port", "python", "api_key_env", "metrics", "served_name")
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
    """Start, prove, print the address, leave it running; what served the model before is ended then."""
    model, alias, config = _named(what)
    release, promotion = _release(model, alias)
    settings = release.deploy
    if config is not None:  # where it runs is the config's business, how it runs is what was measured
        settings = settings.model_copy(update={name: getattr(config.deploy, name) for name in _WHERE})
    kept = keep(release, promotion, settings, Lines())
    if not kept.checks:
        print(f"{model} version {promotion.version} runs already: {kept.url}")
        return 0
    print(f"{model} version {promotion.version} ({promotion.alias}), {release.steps} draft steps, {len(kept.checks)} launch checks passed")
    print(f"drafter and target are the promoted files: SHA-256 {promotion.files_sha256[:16]}… and {release.target_sha256[:16]}…")
    print(f"address: {kept.url}")
    key = f' -H "Authorization: Bearer ${settings.api_key_env}"' if settings.api_key_env else ""
    print(f"ask it: curl {kept.url}/v1/chat/completions{key} -H 'content-type: application/json' -d '{json.dumps(_QUESTION)}'")
    print(f"log: {kept.log}")
    print(f"stop it with: draftproof deploy {model} --stop")
    return 0


def stop_here(what: str | None) -> int:
    """Stop the server of a model, or all that were left running."""
    from tasks.deploy.kept import stop_kept

    model = url = None
    if what is not None:
        model, _, _ = _named(what)
        server = running(model)
        if server is None:
            forget(model)
            raise BadInput(
                what, found="no server of it that was left running", expected="a model that is served", do="See draftproof deploy."
            )
        url = server.url
    stopped = stop_kept(url)
    forget(model)
    for record in stopped:
        print(f"stopped {record.url}")
    return 0


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
