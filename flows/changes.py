"""Is there anything new to train on? What a run would take in, against the last run that measured a drafter."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Self

from pydantic import BaseModel, ConfigDict, Field

from flows.outcome import UNCHANGED, RunReport
from tasks.config import Config
from tasks.data import prompts_sha256
from tasks.report import Report
from tasks.store import Store, sha256_json, versions
from tasks.target import prepare_target
from tasks.watch.kept import known_falls

if TYPE_CHECKING:
    from mlflow.entities import Run as MlflowRun

    from tasks.ledger import Ledger

_SETUP = "draftproof.setup_sha256"
_COMPUTES = ("torch", "transformers", "speculators", "sglang", "draftproof-sglang")
# Tag of a pipeline's run to what it is the digest of.
_INPUTS = {"draftproof.prompts_sha256": "data", "draftproof.target_sha256": "target", _SETUP: "configuration and versions"}
# A run that was stopped, or whose measurement says nothing, has answered nothing: it is done again.
_MEASURED = "metrics.`bench.speedup` > 0 and tags.`draftproof.verdict` != 'INVALID' and tags.`draftproof.verdict` != 'ERROR'"


def setup_tag(config: Config) -> dict[str, str]:
    """The tag that tells a run's configuration, and the versions of what computes, from another's."""
    return {_SETUP: sha256_json([config.model_dump(mode="json"), versions(*_COMPUTES)])}


class News(BaseModel):
    """What is new since the last run that measured a drafter."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    since: str | None = Field(description="Id of that run; null where there was none.")
    anything: bool
    message: str

    @classmethod
    def of(cls, ledger: Ledger, config: Config, *, store: Store, report: Report) -> Self:
        """Raises BadInput and MachineTrouble where target or data cannot be read."""
        now = {
            "draftproof.prompts_sha256": prompts_sha256(config.data),
            "draftproof.target_sha256": prepare_target(config.target, store=store, report=report).sha256,
            **setup_tag(config),
        }
        with ledger.usable():
            last = next((run for run in ledger.search(_MEASURED) if _SETUP in run.data.tags), None)
            if last is None:
                return cls(since=None, anything=True, message="no drafter was measured yet")
            return cls._since(last, now, _acceptance(ledger, last))

    @classmethod
    def _since(cls, last: MlflowRun, now: Mapping[str, str], acceptance: tuple[bool, str]) -> Self:
        before = last.data.tags
        fell, told = acceptance
        changed = [f"{what} {_short(before.get(tag))} → {_short(now[tag])}" for tag, what in _INPUTS.items() if before.get(tag) != now[tag]]
        run = f"run {last.info.run_id} ({last.info.run_name}, {before['draftproof.verdict']})"
        if changed or fell:
            message = f"new since {run}: {'; '.join([*changed, *([told] if fell else [])])}"
        else:
            same = ", ".join(f"{what} {_short(now[tag])}" for tag, what in _INPUTS.items())
            message = f"nothing changed since {run}: {same}; acceptance: {told}"
        return cls(since=last.info.run_id, anything=bool(changed or fell), message=message)


def skipped(ledger: Ledger, news: News, tags: Mapping[str, str]) -> RunReport:
    """A run in the ledger that says why there was nothing to do; it has no verdict, and so no place in the history."""
    with ledger.run("nothing changed", {**tags, "draftproof.unchanged_since": str(news.since)}) as run:
        run.describe(news.message)
        run.text("unchanged.json", news.model_dump_json(indent=1))
    return RunReport(verdict=UNCHANGED, kind=None, stage="changes", message=news.message, exit_status=0, mlflow_run_id=run.id)


def _acceptance(ledger: Ledger, last: MlflowRun) -> tuple[bool, str]:
    """Whether it fell since the run began, and what is known of it."""
    falls = known_falls(ledger)
    if falls is None:
        return False, "no server is watched"
    began = datetime.fromtimestamp(last.info.start_time / 1000, UTC)
    since = [fall for fall in falls if fall.at > began]
    return bool(since), since[-1].message if since else "no lasting fall seen since then"


def _short(digest: str | None) -> str:
    return f"{digest[:12]}…" if digest else "none"
