"""The stages in their order, one's product handed to the next."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from flows.early import check_against_target
from flows.held_out import HeldOutRows, held_out_prompts
from flows.servers import starter
from flows.session import Session
from tasks.benchmark import Benchmark, Prediction
from tasks.benchmark.task import benchmark
from tasks.capture import open_tap
from tasks.capture.task import capture
from tasks.config import Config
from tasks.data.task import data
from tasks.deploy.task import deploy
from tasks.device import place
from tasks.environment.task import environment
from tasks.export.task import export
from tasks.products import CaptureProduct, DataProduct, DrafterProduct, TargetProduct, TrainProduct
from tasks.promote import Release, decide
from tasks.store import Store, versions
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
_LONGEST_ROUND = 8  # tokens beyond the answer that a speculative server may need room for


class Chain:
    """One pipeline run. What is finished stays readable in `target`, `drafter` and `steps`, however the run ends."""

    def __init__(self, config: Config, session: Session, store: Store, logs: Path) -> None:
        self.config, self._session, self._store, self._logs = config, session, store, logs
        self.target: TargetProduct | None = None
        self.drafter: DrafterProduct | None = None
        self.steps: int | None = None
        self.checks: list[Check] = []

    def prove(self) -> Verdict:
        """Every stage up to the decision. Raises ProofFailed at the first broken link, BadInput, MachineTrouble."""
        record = environment(self._session, config=self.config)
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
        prompts = self._prompts(answered)
        verified = self._verify(prepared, answered, captured, trained, exported, prompts)
        self.checks += verified.verdict.checks
        self._made("deploy", self._probe(prepared, exported))
        measured = self._benchmark(prepared, exported, verified, prompts)
        self.steps = measured.steps
        self._made("benchmark", measured.checks)
        return decide(self.config.promote, checks=self.checks, speedup=measured.speedup)

    def _made(self, stage: str, checks: Sequence[Check]) -> None:
        """Kept under the name of the stage that made them; the run's verdict names the stage of the worst."""
        self.checks += [check.model_copy(update={"stage": stage}) for check in checks]

    def release(self) -> Release | None:
        """What can be registered; None before a drafter was exported."""
        if self.target is None or self.drafter is None:
            return None
        return Release(
            model=f"{self.config.target.name}-eagle3",
            drafter=self.drafter.folder,
            target=self.config.target,
            target_sha256=self.target.sha256,
            deploy=self.config.deploy,
            steps=self.steps,
        )

    def _answer_and_capture(self, prepared: TargetProduct) -> tuple[DataProduct, CaptureProduct]:
        """Answers and their features in one pass of the target: capture's tap listens while data is being answered."""
        settings = self.config.capture
        placement = place(settings.device, settings.dtype)
        trust = self.config.target.trust_remote_code

        @cache
        def opened() -> Target:
            return open_target(prepared, device=placement.device, dtype=placement.dtype, trust_remote_code=trust)

        def reference() -> Reference:
            return open_reference(prepared, device=placement.device, trust_remote_code=trust)

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

    def _prompts(self, answered: DataProduct) -> list[list[int]]:
        """The same ones to predict the acceptance on and to measure it on."""
        count = max(self.config.benchmark.prompts, self.config.verify.acceptance_prompts)
        room = self.config.deploy.context_length - self.config.benchmark.output_tokens - _LONGEST_ROUND
        return held_out_prompts(answered, count, longest=room)

    def _verify(
        self,
        prepared: TargetProduct,
        answered: DataProduct,
        captured: CaptureProduct,
        trained: TrainProduct,
        exported: DrafterProduct,
        prompts: list[list[int]],
    ) -> Verification:
        device = place(self.config.verify.device, "float32").device
        return verify(
            self._session,
            config=self.config.verify,
            drafter=exported,
            train=trained,
            features_sha256=captured.sha256,
            held_out=HeldOutRows(answered, captured),
            open_target=lambda: open_target(
                prepared, device=device, dtype="float32", trust_remote_code=self.config.target.trust_remote_code
            ),
            device=device,
            prompts=prompts,
            max_new_tokens=self.config.benchmark.output_tokens,
            steps=sorted(set(self.config.benchmark.steps)),
            topk=self.config.deploy.topk,
            draft_tokens=self.config.deploy.draft_tokens,
            store=self._store,
        )

    def _probe(self, prepared: TargetProduct, exported: DrafterProduct) -> list[Check]:
        """The golden probes, sent to a real server: link 3. Two draft steps at least, since one is blind to some faults."""
        placement = place(self.config.verify.device, "float32")
        trust = self.config.target.trust_remote_code

        def judge(run: StageRun, recorded: Sequence[tuple[list[int], Path]]) -> list[Check]:
            opened = open_target(prepared, device=placement.device, dtype="float32", trust_remote_code=trust)
            bound = self.config.verify.max_logit_difference * _ROUNDING[self.config.deploy.dtype]
            return verify_served(exported.folder, opened, recorded, bound=bound, device=placement.device, report=run)

        return deploy(
            self._session,
            config=self.config.deploy,
            target=prepared.folder,
            drafter=exported.folder,
            steps=max(2, *self.config.benchmark.steps),
            prompts=[probe.token_ids_S.tolist() for probe in read_probes(exported.folder) or []],
            judge=judge,
            logs=self._logs,
        )

    def _benchmark(self, prepared: TargetProduct, exported: DrafterProduct, verified: Verification, prompts: list[list[int]]) -> Benchmark:
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
            prompts=prompts,
            predicted=predictions(verified),
            starter=servers,
            dtype=settings.dtype,
            served_tolerance=self.config.promote.served_tolerance,
            seed=self.config.seed,
            store=self._store,
        )


def predictions(verified: Verification) -> dict[int, Prediction]:
    """Verification's counts in the form that the benchmark compares with."""
    return {
        prediction.steps: Prediction(
            rounds=[prompt.verify_rounds for prompt in prediction.per_prompt],
            right=[sum(right * rounds for right, rounds in enumerate(prompt.histogram)) for prompt in prediction.per_prompt],
        )
        for prediction in verified.predictions
    }
