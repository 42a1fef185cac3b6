"""Two machines or environments that share one run: what has to be the same on both, and who has what."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import tasks
from tasks.environment.needs import SAME_EVERYWHERE
from tasks.environment.record import EnvironmentRecord
from tasks.store import sha256_folder
from tasks.verdict import Check, Outcome
from tasks.wiring.kinds import Kind

_PROTOCOL = ("pydantic", "prefect", "mlflow")
"""What is handed over is written by one side's and read by the other's: of another version it may fail, and says so."""
_OURS = ("tasks", "flows", "infra/sglang_plugins")
_WHO = {"pipeline": "where it is trained", "worker": "in the worker that serves", "serving": "in the server's interpreter"}


def code_sha256() -> str:
    """Digest of the source that this process runs, and of what its checkout has the server run: they lie side by side."""
    root = Path(tasks.__file__).resolve().parent.parent
    return sha256_folder(root, [str(path.relative_to(root)) for part in _OURS for path in (root / part).rglob("*.py")])


def compare(training: EnvironmentRecord, serving: EnvironmentRecord, *, other_versions: bool) -> list[Check]:
    """A check per package that both sides use, and one of our own code, each named with what stands where.

    With `other_versions` another version is a WARN; other code of ours never is: the two would not speak of the same thing.
    """
    interpreters = [*training.interpreters, *serving.interpreters]
    found: dict[str, dict[str, str | None]] = {
        name: {_WHO[each.process]: each.versions.get(name) for each in interpreters} for name in (*SAME_EVERYWHERE, *_PROTOCOL)
    }
    code = {_WHO["pipeline"]: training.code[:16], _WHO["worker"]: serving.code[:16]}
    versions = "Install both sides from one requirements.lock, or allow it with serving.other_versions: true"
    apart = Outcome.WARN if other_versions else Outcome.FAIL
    return [
        *(_same(name, by_who, Outcome.WARN if name in _PROTOCOL else apart, versions) for name, by_who in found.items()),
        _same("draftproof's own code", code, Outcome.FAIL, "Check out the same commit on both sides"),
    ]


def _same(name: str, found: Mapping[str, str | None], otherwise: Outcome, do: str) -> Check:
    """Whoever does not have it at all is another check's: that of the stage which needs it."""
    had = {who: version for who, version in found.items() if version is not None}
    if len(set(had.values())) <= 1:
        return Check(name=f"{name} on both sides", verdict=Outcome.PASS, message=f"{name} {next(iter(had.values()), 'nowhere')}")
    return Check(
        name=f"{name} on both sides",
        verdict=otherwise,
        kind=Kind.ENVIRONMENT,
        message=f"{name}: {', '.join(f'{version} {who}' for who, version in had.items())}. {do}",
        numbers={"found": dict(found)},
    )
