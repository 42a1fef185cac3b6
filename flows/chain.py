"""The stages in their order, one's product handed to the next."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from flows.champion import duel
from flows.early import check_against_target
from flows.elsewhere import Elsewhere
from flows.held_out import HeldOutRows, held_out_prompts
from flows.serving import Here, Serving, Subject
from flows.session import Session
from flows.workload import Workload, longest_prompt, predictions, read_files, trees_of
from tasks.benchmark import CachedChoice, settings_to_try
from tasks.capture import open_tap
from tasks.capture.task import capture
from tasks.config import Config
from tasks.data.task import data
from tasks.deploy.kept import kept_servers
from tasks.device import place
from tasks.environment.task import environment
from tasks.export.task import export
from tasks.products import CaptureProduct, DataProduct, DrafterProduct, TargetProduct, TrainProduct
from tasks.promote import DataSource, Release, decide
from tasks.store import Store, sha256_json
from tasks.target import open_reference, open_target
from tasks.target.task import target
from tasks.train.task import train
from tasks.verdict import Check, Verdict
from tasks.verify import Verification
from tasks.verify.task import verify

if TYPE_CHECKING:
    from tasks.target.model import Target
    from tasks.target.reference import Reference


class Chain:
    """One pipeline run. What is finished stays readable in `target`, `drafter` and `steps`, however the run ends."""

    def __init__(self, config: Config, session: Session, store: Store, logs: Path) -> None:
        self.config, self._session, self._store = config, session, store
        self.serving: Serving = Elsewhere(config, session) if config.serving.pool else Here(config, session, logs)
        self.target: TargetProduct | None = None
        self.drafter: DrafterProduct | None = None
        self.choice: CachedChoice | None = None
        self.stops_paying: int | None = None
        self.data: list[DataSource] = []
        self.checks: list[Check] = []

    def prove(self) -> Verdict:
        """Every stage up to the decision. Raises ProofFailed at the first broken link, BadInput, MachineTrouble."""
        found = environment(
            self._session,
            config=self.config,
            kept_ports=[server.port for server in kept_servers()],
            ask_serving=self.serving.look,
        )
        self._made("environment", found)
        prepared = self.target = target(self._session, config=self.config.target, store=self._store)
        check_against_target(self.config, prepared)
        self.serving.check_target(prepared)
        answered, captured = self._answer_and_capture(prepared)
        trained = train(
            self._session,
            config=self.config.train,
            seed=self.config.seed,
            data=answered,
            capture=captured,
            target=prepared,
            parity_rows=self.config.verify.parity_samples,
            store=self._store,
        )
        exported = self.drafter = export(
            self._session, config=self.config.export, train=trained, capture=captured, target=prepared, store=self._store
        )
        self._made("capture", captured.checks)
        self._made("train", trained.checks)
        self._made("export", exported.checks)
        workload = self._prompts(prepared, answered)
        prompts = workload.prompts
        self.data = _data(answered, workload)
        subject = Subject(self.config, prepared, exported)
        verified = self._verify(subject, answered, captured, trained, prompts)
        self.checks += verified.verdict.checks
        self._made("deploy", self.serving.probe(subject))
        predicted = predictions(verified, settings_to_try(self.config.benchmark, self.config.deploy))
        measured = self.serving.measure(subject, workload, predicted, self.checks)
        self.choice, self.stops_paying = measured.choice, measured.stops_paying
        self._made("benchmark", measured.checks)
        return decide(self.config.promote, checks=self.checks, speedup=measured.speedup, duel=duel(measured))

    def _made(self, stage: str, checks: Sequence[Check]) -> None:
        """Kept under the name of the stage that made them; the run's verdict names the stage of the worst."""
        self.checks += [check.model_copy(update={"stage": stage}) for check in checks]

    def release(self) -> Release | None:
        """What can be registered; None before a drafter was exported."""
        if self.target is None or self.drafter is None:
            return None
        chosen = self.choice.settings[self.config.benchmark.concurrency] if self.choice else None
        return Release(
            model=f"{self.config.target.name}-eagle3",
            drafter=self.drafter.folder,
            target=self.config.served_target,
            target_sha256=self.target.sha256,
            deploy=chosen.deployed(self.config.deploy) if chosen else self.config.deploy,
            steps=chosen.steps if chosen else None,
            by_concurrency={c: s.model_dump() for c, s in self.choice.settings.items()} if self.choice else {},
            data=self.data,
            stops_paying=self.stops_paying,
        )

    def _answer_and_capture(self, prepared: TargetProduct) -> tuple[DataProduct, CaptureProduct]:
        """Answers and their features in one pass of the target: capture's tap listens while data is being answered."""
        settings = self.config.capture
        placement = place(settings.device, settings.dtype)

        @cache
        def opened() -> Target:
            return open_target(prepared, device=placement.device, dtype=placement.dtype)

        def reference() -> Reference:
            return open_reference(prepared, device=placement.device)

        answered = data(
            self._session,
            config=self.config.data,
            seed=self.config.seed,
            target=prepared,
            open_engine=opened,
            placement=placement,
            tap=open_tap(settings, prepared),
            store=self._store,
        )
        captured = capture(
            self._session,
            config=settings,
            data=answered,
            target=prepared,
            open_target=opened,
            open_reference=reference,
            placement=placement,
            store=self._store,
        )
        return answered, captured

    def _prompts(self, prepared: TargetProduct, answered: DataProduct) -> Workload:
        """The same ones to predict the acceptance on and to measure it on."""
        count = max(self.config.benchmark.prompts, self.config.verify.acceptance_prompts)
        if self.config.benchmark.workloads:
            return read_files(self.config, prepared, count)
        return Workload(held_out_prompts(answered, count, longest=longest_prompt(self.config)))

    def _verify(
        self,
        subject: Subject,
        answered: DataProduct,
        captured: CaptureProduct,
        trained: TrainProduct,
        prompts: list[list[int]],
    ) -> Verification:
        settings = settings_to_try(self.config.benchmark, self.config.deploy)
        return verify(
            self._session,
            config=self.config.verify,
            drafter=subject.drafter,
            train=trained,
            features_sha256=captured.sha256,
            held_out=HeldOutRows(answered, captured),
            open_target=subject.opened,
            device=subject.device,
            prompts=prompts,
            max_new_tokens=self.config.benchmark.output_tokens,
            steps=sorted({setting.steps for setting in settings}),
            trees=trees_of(settings),
            store=self._store,
        )


def _data(answered: DataProduct, workload: Workload) -> list[DataSource]:
    """The conversations, held-out ones for the accuracies included, and the prompts of acceptance and speed."""
    prompts = workload.source or answered.conversations
    return [
        DataSource(name="conversations", path=answered.conversations, sha256=answered.sha256, use="training"),
        DataSource(name="benchmark prompts", path=prompts, sha256=sha256_json(workload.prompts), use="evaluation"),
    ]
