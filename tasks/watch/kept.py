"""The intervals of one server, kept in MLflow: one run per server and drafter, a point of its curves per look."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Self

from pydantic import BaseModel, ConfigDict

from tasks.watch.counters import Counters
from tasks.watch.fall import Fall, Interval

if TYPE_CHECKING:
    from tasks.ledger import Ledger, Run

_OF = "draftproof.watched"
_COUNTERS = "draftproof.watch_counters"
_FELL = "draftproof.acceptance_fell"
_ACCEPT, _ROUNDS = "watch.accept_length", "watch.rounds"


class KnownFall(BaseModel):
    """A lasting fall, and when it was seen."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    at: datetime
    message: str


def known_falls(ledger: Ledger) -> list[KnownFall] | None:
    """The last fall of each server that is watched; None where none is watched."""
    runs = ledger.search(f"tags.`{_OF}` != ''")
    found = [run.data.tags[_FELL] for run in runs if _FELL in run.data.tags]
    return [KnownFall.model_validate_json(each) for each in found] if runs else None


class ServerCurve:
    """What is known of a server so far; `run` is entered to add to it."""

    def __init__(self, ledger: Ledger, run: Run) -> None:
        self._ledger, self.run = ledger, run

    @classmethod
    def of(cls, ledger: Ledger, url: str, drafter: str) -> Self:
        """`drafter`: what tells one promoted drafter from the next, since a new one starts a new history."""
        name = f"{drafter} at {url}"
        return cls(ledger, ledger.reopened(_OF, name) or ledger.run(f"watch {name}", {_OF: name}))

    def last(self) -> Counters | None:
        found = self._ledger.client.get_run(self.run.id).data.tags.get(_COUNTERS)
        return Counters.model_validate_json(found) if found else None

    def intervals(self) -> list[Interval]:
        client = self._ledger.client
        accepted = sorted(client.get_metric_history(self.run.id, _ACCEPT), key=lambda metric: metric.step)
        rounds = {metric.step: metric.value for metric in client.get_metric_history(self.run.id, _ROUNDS)}
        return [Interval(accept_length=metric.value, rounds=rounds[metric.step]) for metric in accepted if metric.step in rounds]

    def add(self, new: Counters, now: Counters, step: int) -> None:
        """Keep an interval, and where the next one starts."""
        self.run.metrics({_ACCEPT: new.accept_length, _ROUNDS: new.rounds}, step)
        self.start_from(now)

    def start_from(self, now: Counters) -> None:
        self.run.tag({_COUNTERS: now.model_dump_json()})

    def fell(self, found: Fall) -> None:
        """Keep that it fell, for whoever asks later whether there is a reason to train."""
        self.run.tag({_FELL: KnownFall(at=datetime.now(UTC), message=found.message).model_dump_json()})
