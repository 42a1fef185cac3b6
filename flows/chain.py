"""The stages in their order, one's product handed to the next."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from flows.champion import duel, reigning_champion
from flows.early import check_against_target
from flows.held_out import HeldOutRows, held_out_prompts
from flows.servers import starter
from flows.session import Session
from flows.workload import Workload, judge, longest_prompt, predictions, read_files, trees_of
from tasks.benchmark import Benchmark, CachedChoice, settings_to_try
from tasks.benchmark.task import benchmark
from tasks.capture import open_tap
from tasks.capture.task import capture
from tasks.config import Config
from tasks.data.task import data
from tasks.deploy.kept import kept_servers
from tasks.deploy.task import deploy
from tasks.device import place
from tasks.environment.task import environment
from tasks.export.task import export
from tasks.products import CaptureProduct, DataProduct, DrafterProduct, TargetProduct, TrainProduct
from tasks.promote import DataSource, Release, decide
from tasks.store import Store, sha256_json, versions
from tasks.target import open_reference, open_target
from tasks.target.task import target
from tasks.train.task import train
from tasks.verdict import Check, Verdict
from tasks.verify import Verification, verify_served
from tasks.verify.task import verify
from tasks.wiring.probes import read_probes

if TYPE_CHECKING:
    from tasks.benchmark import Start
    from tasks.stage import StageRun
    from tasks.target.model import Target
    from tasks.target.reference import Reference

# How much further than in float32 a server's logits may be from the standalone ones, by the dtype that it computes in
# (the rounding of a 16-bit number against that of float32's sums; both 16-bit types are far from any known mis-wiring).
_ROUNDING = {"float32": 1.0, "bfloat16": 300.0, "float16": 100.0}


class Chain:
    """One pipeline run. What is finished stays readable in `target`, `drafter` and `steps`, however the run ends."""

    def __init__(self, config: Config, session: Session, store: Store, logs: Path) -> None:
        self.config, self._session, self._store, self._logs = config, session, store, logs
        self.target: TargetProduct | None = None
        self.drafter: DrafterProduct | None = None
        self.choice: CachedChoice | None = None
        self.stops_paying: int | None = None
        self.data: list[DataSource] = []
        self.checks: list[Check] = []

    def prove(self) -> Verdict:
        """Every stage up to the decision. Raises ProofFailed at the first broken link, BadInput, MachineTrouble."""
        record = environment(self._session, config=self.config, kept_ports=[server.port for server in kept_servers()])
        self._made("environment", record.checks)
        prepared = self.target = target(self._session, config=self.config.target, store=self._store)
        check_against_target(self.config, prepared)
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
        verified = self._verify(prepared, answered, captured, trained, exported, prompts)
        self.checks += verified.verdict.checks
        self._made("deploy", self._probe(prepared, exported))
        measured = self._benchmark(prepared, exported, verified, workload)
        self.choice, self.stops_paying = measured.choice, measured.stops_paying
        self._made("benchmark", measured.checks)
        return decide(self.config.promote, checks=self.checks, speedup=measured.speedup, duel=duel(measured))

    def _made(self, stage: str, checks: Sequence[Check]) -> None:
        """Kept under the name of the stage that made them; the run's verdict names the stage of the worst."""
        self.checks += [check.model_copy(update={"stage": stage}) for check in checks]

    @property
    def _device(self) -> str:
        return place(self.config.verify.device, "float32").device

    def _opened(self, prepared: TargetProduct) -> Target:
        """The target as the proof computes it."""
        return open_target(prepared, device=self._device, dtype="float32")

    def release(self) -> Release | None:
        """What can be registered; None before a drafter was exported."""
        if self.target is None or self.drafter is None:
            return None
        chosen = self.choice.settings[self.config.benchmark.concurrency] if self.choice else None
        return Release(
            model=f"{self.config.target.name}-eagle3",
            drafter=self.drafter.folder,
            target=self.config.target,
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
        prepared: TargetProduct,
        answered: DataProduct,
        captured: CaptureProduct,
        trained: TrainProduct,
        exported: DrafterProduct,
        prompts: list[list[int]],
    ) -> Verification:
        settings = settings_to_try(self.config.benchmark, self.config.deploy)
        return verify(
            self._session,
            config=self.config.verify,
            drafter=exported,
            train=trained,
            features_sha256=captured.sha256,
            held_out=HeldOutRows(answered, captured),
            open_target=lambda: self._opened(prepared),
            device=self._device,
            prompts=prompts,
            max_new_tokens=self.config.benchmark.output_tokens,
            steps=sorted({setting.steps for setting in settings}),
            trees=trees_of(settings),
            store=self._store,
        )

    def _probe(self, prepared: TargetProduct, exported: DrafterProduct) -> list[Check]:
        """The golden probes, sent to a real server: link 3. Two draft steps at least, since one is blind to some faults."""
        bound = self.config.verify.max_logit_difference * _ROUNDING[self.config.deploy.dtype]

        def judge(run: StageRun, recorded: Sequence[tuple[list[int], Path]]) -> list[Check]:
            return verify_served(exported.folder, self._opened(prepared), recorded, bound=bound, device=self._device, report=run)

        return deploy(
            self._session,
            config=self.config.deploy,
            target=prepared.folder,
            drafter=exported.folder,
            steps=max(2, *self.config.benchmark.steps),
            prompts=[probe.token_ids_S.tolist() for probe in read_probes(exported.folder) or []],
            judge=judge,
            served_tolerance=self.config.promote.served_tolerance,
            logs=self._logs,
        )

    def _benchmark(self, prepared: TargetProduct, exported: DrafterProduct, verified: Verification, workload: Workload) -> Benchmark:
        settings = self.config.deploy

        def servers(run: StageRun) -> Start:
            return starter(settings, target=prepared.folder, drafter=exported.folder, logs=self._logs, run=run, contract=self.checks)

        return benchmark(
            self._session,
            config=self.config.benchmark,
            served={
                "target": prepared.sha256,
                "drafter": exported.sha256,
                "deploy": settings.model_dump(mode="json"),
                "versions": versions("sglang", "torch", "draftproof-sglang"),
            },
            prompts=workload.prompts,
            categories=workload.categories,
            predicted=predictions(verified, settings_to_try(self.config.benchmark, self.config.deploy)),
            starter=servers,
            champion=reigning_champion(self.config, drafter=exported.folder, target=prepared, logs=self._logs, checks=self.checks),
            dtype=settings.dtype,
            served_tolerance=self.config.promote.served_tolerance,
            seed=self.config.seed,
            store=self._store,
            judge=judge(self.config, exported.folder, workload, lambda: self._opened(prepared), settings.dtype),
        )


def _data(answered: DataProduct, workload: Workload) -> list[DataSource]:
    """The conversations, held-out ones for the accuracies included, and the prompts of acceptance and speed."""
    prompts = workload.source or answered.conversations
    return [
        DataSource(name="conversations", path=answered.conversations, sha256=answered.sha256, use="training"),
        DataSource(name="benchmark prompts", path=prompts, sha256=sha256_json(workload.prompts), use="evaluation"),
    ]
