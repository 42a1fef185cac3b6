"""The stages that need the machine that serves, with all that they need as data: the same code runs them here and elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from flows.champion import reigning_champion
from flows.early import check_launches
from flows.kept import take_over
from flows.servers import starter
from flows.session import Session, Watched
from flows.workload import Workload, judge
from tasks.benchmark import Benchmark, Prediction, Setting
from tasks.benchmark.task import benchmark
from tasks.config import Config
from tasks.deploy.task import deploy
from tasks.device import place
from tasks.environment import EnvironmentRecord
from tasks.products import DrafterProduct, TargetProduct
from tasks.store import versions
from tasks.target import open_target
from tasks.verdict import Check
from tasks.verify import verify_served
from tasks.wiring.probes import read_probes

if TYPE_CHECKING:
    from tasks.benchmark import Start
    from tasks.ledger import Ledger
    from tasks.stage import StageRun
    from tasks.target.model import Target

# How much further than in float32 a server's logits may be from the standalone ones, by the dtype that it computes in
# (the rounding of a 16-bit number against that of float32's sums; both 16-bit types are far from any known mis-wiring).
_ROUNDING = {"float32": 1.0, "bfloat16": 300.0, "float16": 100.0}


@dataclass(frozen=True)
class Subject:
    """What is served: folders on the machine that serves."""

    config: Config
    target: TargetProduct
    drafter: DrafterProduct

    @property
    def device(self) -> str:
        """Where the proof computes."""
        return place(self.config.verify.device, "float32").device

    def opened(self) -> Target:
        """The target as the proof computes it."""
        return open_target(self.target, device=self.device, dtype="float32")


class Serving(Protocol):
    """Who serves for a pipeline run: this process, or another machine."""

    @property
    def look(self) -> Callable[[StageRun], EnvironmentRecord] | None:
        """What the other machine has; None where there is none."""

    def check_target(self, target: TargetProduct) -> None:
        """Raises what a server would refuse in hours: ProofFailed, BadInput."""

    def probe(self, subject: Subject) -> list[Check]:
        """See `probe`."""

    def measure(self, subject: Subject, workload: Workload, predicted: dict[Setting, Prediction], contract: list[Check]) -> Benchmark:
        """See `measure`."""

    def take_over(self, ledger: Ledger, model: str) -> list[Check]:
        """See `flows.kept.take_over`."""


class Here:
    """This process serves."""

    look = None

    def __init__(self, config: Config, session: Session, logs: Path) -> None:
        self._config, self._session, self._logs = config, session, logs

    def check_target(self, target: TargetProduct) -> None:
        check_launches(self._config, target)

    def probe(self, subject: Subject) -> list[Check]:
        return probe(self._session, subject, self._logs)

    def measure(self, subject: Subject, workload: Workload, predicted: dict[Setting, Prediction], contract: list[Check]) -> Benchmark:
        return measure(self._session, subject, workload, predicted, contract, self._logs)

    def take_over(self, ledger: Ledger, model: str) -> list[Check]:
        return take_over(ledger, model, Watched("promote", self._session.watcher))


def probe(session: Session, subject: Subject, logs: Path) -> list[Check]:
    """The golden probes, sent to a real server: link 3. Two draft steps at least, since one is blind to some faults."""
    config, drafter = subject.config, subject.drafter.folder
    bound = config.verify.max_logit_difference * _ROUNDING[config.deploy.dtype]

    def judged(run: StageRun, recorded: Sequence[tuple[list[int], Path]]) -> list[Check]:
        return verify_served(drafter, subject.opened(), recorded, bound=bound, device=subject.device, report=run)

    return deploy(
        session,
        config=config.deploy,
        target=subject.target.folder,
        drafter=drafter,
        steps=max(2, *config.benchmark.steps),
        prompts=[golden.token_ids_S.tolist() for golden in read_probes(drafter) or []],
        judge=judged,
        served_tolerance=config.promote.served_tolerance,
        logs=logs,
    )


def measure(
    session: Session, subject: Subject, workload: Workload, predicted: dict[Setting, Prediction], contract: list[Check], logs: Path
) -> Benchmark:
    """Plain against speculative, and the champion beside them. What the servers resolved is added to `contract`."""
    config, target, drafter = subject.config, subject.target, subject.drafter
    settings = config.deploy

    def servers(run: StageRun) -> Start:
        return starter(settings, target=target.folder, drafter=drafter.folder, logs=logs, run=run, contract=contract)

    return benchmark(
        session,
        config=config.benchmark,
        served={
            "target": target.sha256,
            "drafter": drafter.sha256,
            "deploy": settings.model_dump(mode="json"),
            "versions": versions("sglang", "torch", "draftproof-sglang"),
        },
        prompts=workload.prompts,
        categories=workload.categories,
        predicted=predicted,
        starter=servers,
        champion=reigning_champion(config, drafter=drafter.folder, target=target, logs=logs, checks=contract),
        dtype=settings.dtype,
        served_tolerance=config.promote.served_tolerance,
        seed=config.seed,
        store=session.store,
        judge=judge(config, drafter.folder, workload, subject.opened, settings.dtype),
    )
