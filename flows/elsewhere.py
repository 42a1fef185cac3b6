"""Another machine, or another environment on this one, serves: its stages run in the work pool that `serving.pool` names."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flows.handover import Fault, Job, Order, Result, receive, send, send_drafter
from flows.kept import TAKE_OVER
from flows.pools import FLOW, run_in_pool
from flows.session import Session
from tasks.benchmark import Benchmark, Prediction, Setting
from tasks.config import Config
from tasks.environment import EnvironmentRecord
from tasks.products import TargetProduct
from tasks.store import home
from tasks.verdict import BadInput, Check, DraftproofError, MachineTrouble, Outcome

if TYPE_CHECKING:
    from flows.serving import Subject
    from flows.workload import Workload
    from tasks.ledger import Ledger
    from tasks.stage import StageRun


def holds_machine() -> str:
    """Who has `tasks.store.machine` when a run of this process has it."""
    return f"{socket.gethostname()}:{home()}"


def result_tag(job: Job) -> str:
    """Tag of the pipeline's run: the SHA-256 of a job's result."""
    return f"draftproof.handover.{job}"


class Elsewhere:
    """What `flows.serving.Here` does, done by the worker of a work pool; runs, figures and verdicts end up in the same place."""

    def __init__(self, config: Config, session: Session) -> None:
        assert config.serving.pool is not None, "else this process serves"
        self._pool, self._patience = config.serving.pool, float(config.serving.patience_seconds)
        self._config = config.model_copy(update={"target": config.served_target})
        self._name = config.target.name
        self._session = session
        self._drafter: dict[str, str] = {}
        self._target_sha256: str | None = None
        self._refused: Fault | None = None

    def look(self, run: StageRun) -> EnvironmentRecord:
        """What the other machine has; it looks at the target and at the launches too, as far as that goes."""
        result = self._done("environment", run.say)
        if result.record is None:
            raise self._error(result, "environment")
        self._refused, self._target_sha256 = result.fault, result.target_sha256
        return result.record

    def check_target(self, target: TargetProduct) -> None:
        """Raises what `look` was told of the target there: another one, none, or launches that it rules out."""
        if self._refused is not None:
            raise self._refused.error(self._pool)
        if self._target_sha256 != target.sha256:
            raise BadInput(
                "target.source",
                found=f"{self._config.target.source} with fingerprint {self._target_sha256} in work pool {self._pool!r}",
                expected=f"{target.sha256}, that of {target.folder}",
                do="Copy the target there, or name its folder there as serving.target.",
            )

    def probe(self, subject: Subject) -> list[Check]:
        return self._staged("deploy", **self._of(subject)).found

    def measure(self, subject: Subject, workload: Workload, predicted: dict[Setting, Prediction], contract: list[Check]) -> Benchmark:
        given = {"prompts": workload.prompts, "categories": workload.categories, "predicted": list(predicted.items())}
        found = self._staged("benchmark", contract, **self._of(subject), **given).benchmark
        assert found is not None, "a benchmark that ends without a fault has a result"
        return found

    def take_over(self, ledger: Ledger, model: str) -> list[Check]:
        """The server that is kept there. A fault is a WARN, as it is here."""

        def say(text: str) -> None:
            self._session.watcher.say("promote", text)

        try:
            result = self._done("take-over", say, model=model)
            if result.fault is not None:
                raise self._error(result, "take-over")
            return result.found
        except DraftproofError as error:
            message = f"whether the server that is kept of {model} was replaced is not known: {error}"
            return [Check(name=TAKE_OVER, verdict=Outcome.WARN, message=message, stage="promote")]

    def _of(self, subject: Subject) -> dict[str, Any]:
        """What tells the other machine what to serve; the drafter's files are sent once."""
        self._drafter = self._drafter or send_drafter(self._session.run, subject.drafter.folder)
        return {"target_sha256": subject.target.sha256, "drafter": self._drafter, "drafter_sha256": subject.drafter.sha256}

    def _staged(self, job: Job, contract: list[Check] | None = None, **given: Any) -> Result:
        """A job that has a stage's run of its own in the ledger, opened where it runs. Raises what ended it there."""
        with self._session.away(job) as say:
            result = self._done(job, say, **given)
            if contract is not None:
                contract += result.contract
            self._session.headlines.update(result.headlines)
            if result.fault is not None:
                raise self._error(result, job)
            return result

    def _error(self, result: Result, job: Job) -> DraftproofError:
        return result.fault.error(self._pool) if result.fault else MachineTrouble(f"{job} in work pool {self._pool!r} gave no result")

    def _done(self, job: Job, say: Callable[[str], None], **given: Any) -> Result:
        run = self._session.run
        order = Order(job=job, config=self._config, holds_machine=holds_machine(), refresh=sorted(self._session.store.refresh), **given)
        asked = {"job": job, "run_id": run.id, "target": self._name, "order_sha256": send(run, f"{job}-order", order)}
        name = f"{job} of {run.id[:8]}"
        state = run_in_pool(self._pool, FLOW, name=name, parameters={"parameters": asked}, patience=self._patience, say=say)
        sha256 = run.tags().get(result_tag(job))
        if sha256 is None:
            raise MachineTrouble(f"{job} in work pool {self._pool!r} ended as {state.name} and left no result: {state.message}")
        return receive(run, f"{job}-result", sha256, Result)
