"""The flow `serving-stage`: what a pipeline run on another machine asks of the one that serves, done by its worker here.

Nothing that a serving environment may lack is imported before the job that looks for it has been done.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from prefect import flow
from prefect.states import Completed
from pydantic import BaseModel, ConfigDict, Field

from flows.elsewhere import holds_machine, result_tag
from flows.handover import Fault, Job, Order, Result, receive, receive_drafter, send
from flows.outcome import RunReport
from flows.pools import FLOW
from flows.progress import PlainLines
from flows.session import Session, Watched
from tasks.deploy.kept import kept_servers
from tasks.environment import check_environment
from tasks.ledger import open_ledger
from tasks.report import Silent
from tasks.store import Store, home, lent_machine, machine
from tasks.verdict import BadInput, Check, DraftproofError, Outcome

if TYPE_CHECKING:
    from flows.serving import Subject
    from tasks.ledger import Ledger, Run
    from tasks.products import TargetProduct


class Parameters(BaseModel):
    """Filled in by the run that asks; there is nothing here to start by hand."""

    model_config = ConfigDict(extra="forbid")

    job: Job
    run_id: str = Field(pattern=r"^[0-9a-f]{32}$", description="The pipeline's run in MLflow, which holds the order and gets the result.")
    target: str = Field(description="The target's name: its experiment in MLflow.")
    order_sha256: str = Field(pattern=r"^[0-9a-f]{64}$", description="Of the order: it is that one, or it is refused.")


@flow(name=FLOW, persist_result=False)
def serving_stage(parameters: Parameters) -> Any:
    """Do one job for a pipeline run that trains elsewhere, which gets the result. With one it has done what it was asked for,
    and whatever the result says is told once, by that run."""
    try:
        ledger = open_ledger(parameters.target)
        run = ledger.opened(parameters.run_id)
        order = receive(run, f"{parameters.job}-order", parameters.order_sha256, Order)
        result = Worker(ledger, run, order).result()
        run.tag({result_tag(order.job): send(run, f"{order.job}-result", result)})
    except DraftproofError as error:
        return RunReport.of_error(error, parameters.job).state()
    return Completed(message="done" if result.fault is None else f"done, and stopped: {result.fault.error('here')}")


class Worker:
    """One job. What it came to before it was stopped stays in `_made`, by the names of `Result`."""

    def __init__(self, ledger: Ledger, run: Run, order: Order) -> None:
        self._ledger, self._run, self._order = ledger, run, order
        stage = "promote" if order.job == "take-over" else order.job
        watcher = PlainLines([stage])
        self._report = Watched(stage, watcher)
        self._session = Session(run, watcher, Store(refresh=frozenset(order.refresh)))
        self._logs = home() / "runs" / run.id
        self._contract: list[Check] = []
        self._made: dict[str, Any] = {}

    def result(self) -> Result:
        """Whatever it is that ends the job, short of a fault of ours, is in the result."""
        jobs = {"environment": self._environment, "deploy": self._deploy, "benchmark": self._benchmark, "take-over": self._take_over}
        fault, began = None, time.time()
        try:
            with self._machine():
                jobs[self._order.job]()
        except DraftproofError as error:
            fault = Fault.of(error)
        if self._logs.is_dir():
            from flows.servers import keep_logs

            keep_logs(self._run, self._logs, since=began)
        return Result(**self._made, contract=self._contract, headlines=self._session.headlines, fault=fault)

    def _machine(self) -> AbstractContextManager[None]:
        """Whoever asks has it already where both sides are one machine with one home."""
        return lent_machine() if self._order.holds_machine == holds_machine() else machine(self._report.say)

    def _environment(self) -> None:
        """The look; then, if nothing is missing, the target and the launches as far as there are any without a drafter."""
        ports = [server.port for server in kept_servers()]
        record = self._made["record"] = check_environment(self._order.config, kept_ports=ports, report=Silent(), side="serving")
        if any(check.verdict is Outcome.FAIL for check in record.checks):
            return
        from flows.early import check_launches

        target = self._target()
        self._made["target_sha256"] = target.sha256
        check_launches(self._order.config, target)

    def _deploy(self) -> None:
        from flows.serving import probe

        self._made["found"] = probe(self._session, self._subject(), self._logs)

    def _benchmark(self) -> None:
        from flows.serving import measure
        from flows.workload import Workload

        workload = Workload(self._order.prompts, self._order.categories)
        self._made["benchmark"] = measure(self._session, self._subject(), workload, dict(self._order.predicted), self._contract, self._logs)

    def _take_over(self) -> None:
        from flows.kept import take_over

        assert self._order.model is not None, "an order of this kind names a model"
        self._made["found"] = take_over(self._ledger, self._order.model, self._report)

    def _target(self) -> TargetProduct:
        from tasks.target import prepare_target

        return prepare_target(self._order.config.target, store=self._session.store, report=self._report)

    def _subject(self) -> Subject:
        """Raises BadInput for a target that is another one by now, MachineTrouble for a drafter that did not arrive as it was sent."""
        from flows.serving import Subject
        from tasks.products import DrafterProduct

        target = self._target()
        if target.sha256 != self._order.target_sha256:
            expected = f"fingerprint {self._order.target_sha256}"
            raise BadInput("target.source", found=f"{target.folder} with {target.sha256}", expected=expected, do="Restore the target.")
        folder = receive_drafter(self._run, self._order.drafter, self._session.store)
        return Subject(self._order.config, target, DrafterProduct(folder=folder, sha256=str(self._order.drafter_sha256)))
