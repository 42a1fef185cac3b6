"""A benchmark by itself: of a drafter on disk, of a registered one, or of two servers that run already."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.benchmark import check_asked
from flows.champion import duel, reigning_champion
from flows.outcome import RunReport
from flows.progress import Watcher
from flows.servers import starter
from flows.session import Session
from flows.story import describe, title
from flows.verification import BUILTIN_PROMPTS
from flows.workload import Workload, judge, longest_prompt, predictions, read_files, trees_of
from tasks.benchmark import Benchmark, CachedChoice, Prediction, Setting, Start, settings_to_try
from tasks.benchmark.task import benchmark
from tasks.config import Config
from tasks.data import read_prompts
from tasks.deploy import attach_server
from tasks.ledger import Run, open_ledger
from tasks.promote import decide, find_release
from tasks.store import Store, home, sha256_folder, versions
from tasks.target import open_target
from tasks.target.task import target
from tasks.verdict import BadInput, Check, DraftproofError, ProofFailed, Verdict
from tasks.verify import verify_drafter

if TYPE_CHECKING:
    from tasks.deploy.attached import AttachedServer
    from tasks.products import TargetProduct
    from tasks.stage import StageRun
    from tasks.target.model import Target


@dataclass(frozen=True)
class Asked:
    """What is measured: the servers at two addresses, else a drafter's folder, else the champion of the config's target."""

    config: Config
    drafter: Path | None = None
    plain: str | None = None
    speculative: str | None = None


def run_benchmark(asked: Asked, *, watcher: Watcher, flow_run_id: str = "") -> RunReport:
    """Measure, and write verdict, figures and tables to MLflow. Raises DraftproofError only where no run could be opened."""
    ledger = open_ledger(asked.config.target.name)
    name = f"benchmark {time.strftime('%Y-%m-%d %H:%M:%S')}"
    with ledger.run(name, {"draftproof.flow_run_id": flow_run_id}) as run:
        run.params(asked.config.model_dump(mode="json"))
        session = Session(run, watcher, Store())
        bench = Bench(asked, session, home() / "runs" / run.id)
        report = bench.report()
        run.rename(f"{title(report)} {name}")
        _write(run, report)
    return report


def _write(run: Run, report: RunReport) -> None:
    run.tag({"draftproof.verdict": report.verdict, "draftproof.kind": report.kind or "", "draftproof.stage": report.stage})
    run.text("verdict.json", report.model_dump_json(indent=1))
    run.describe(f"{describe(report)}\n\nA benchmark by itself: the plain against the speculative server.")
    if report.exit_status:
        run.fail()


class Bench:
    """One benchmark; every check that was made stays readable in `checks`, however it ends."""

    def __init__(self, asked: Asked, session: Session, logs: Path) -> None:
        self._asked, self._config, self._session, self._logs = asked, asked.config, session, logs
        self._drafter = asked.drafter
        self._target: Path | None = None
        self.checks: list[Check] = []

    def report(self) -> RunReport:
        """The verdict, or what stopped it."""
        try:
            outcome = RunReport.of_verdict(self._measure())
        except ProofFailed as error:
            outcome = RunReport.of_verdict(error.verdict.model_copy(update={"checks": [*self.checks, *error.verdict.checks]}))
        except DraftproofError as error:
            outcome = RunReport.of_error(error, self._session.current).model_copy(update={"checks": self.checks})
        found = {"drafter": self._drafter, "target": self._target, "mlflow_run_id": self._session.run.id}
        return outcome.model_copy(update={**found, "metrics": self._session.headlines})

    def _measure(self) -> Verdict:
        check_asked(self._asked.drafter, self._asked.plain, self._asked.speculative)
        prepared = target(self._session, config=self._config.served_target, store=self._session.store)
        self._target = prepared.folder
        workload = self._workload(prepared)
        servers = self._attached() if self._asked.plain else None
        if servers is None and self._drafter is None:
            self._drafter = self._champion()
        settings = [servers.setting] if servers else settings_to_try(self._config.benchmark, self._config.deploy)
        predicted = self._predict(prepared, workload, settings) if self._drafter else {}
        measured = self._benchmark(prepared, workload, predicted, servers)
        self.checks += [check.model_copy(update={"stage": "benchmark"}) for check in measured.checks]
        return decide(self._config.promote, checks=self.checks, speedup=measured.speedup, duel=duel(measured))

    def _workload(self, prepared: TargetProduct) -> Workload:
        count = self._config.benchmark.prompts
        if self._config.benchmark.workloads:
            return read_files(self._config, prepared, count)
        return Workload(read_prompts(BUILTIN_PROMPTS, target=prepared, count=count, longest=longest_prompt(self._config)))

    def _opened(self, prepared: TargetProduct) -> Target:
        """The target as the proof computes it."""
        return open_target(prepared, device=self._config.verify.device, dtype="float32")

    def _champion(self) -> Path:
        from tasks.ledger.store import connect, tracking_uri, usable

        with usable(tracking_uri()):
            release, _ = find_release(connect(), f"{self._config.target.name}-eagle3")
        return release.drafter

    def _predict(self, prepared: TargetProduct, workload: Workload, settings: Sequence[Setting]) -> dict[Setting, Prediction]:
        """The drafter proved alone, and its acceptance simulated on the prompts that are measured."""
        assert self._drafter is not None
        with self._session.stage("verify") as run:
            found = verify_drafter(
                self._config.verify,
                checkpoint=self._drafter,
                target=self._opened(prepared),
                held_out=[],
                trainer_logits=None,
                trainer_steps=None,
                prompts=workload.prompts,
                max_new_tokens=self._config.benchmark.output_tokens,
                steps=sorted({setting.steps for setting in settings}),
                trees=trees_of(settings),
                report=run,
            )
            run.verdict(found.verdict)
        self.checks += found.verdict.checks
        if found.verdict.verdict.exit_status:
            raise ProofFailed(found.verdict.model_copy(update={"checks": []}))
        return predictions(found, settings)

    def _benchmark(
        self, prepared: TargetProduct, workload: Workload, predicted: dict[Setting, Prediction], servers: Attached | None
    ) -> Benchmark:
        config = self._config
        dtype = servers.dtype if servers else config.deploy.dtype
        contract: list[Check] = []

        def starting(run: StageRun) -> Start:
            if servers is not None:
                return servers.start
            assert self._drafter is not None
            return starter(config.deploy, target=prepared.folder, drafter=self._drafter, logs=self._logs, run=run, contract=contract)

        try:
            return benchmark(
                self._session,
                config=config.benchmark,
                served={
                    "target": prepared.sha256,
                    "drafter": sha256_folder(self._drafter) if self._drafter else None,
                    "deploy": config.deploy.model_dump(mode="json"),
                    "servers": servers.key if servers else None,
                    "versions": versions("sglang", "torch", "draftproof-sglang"),
                },
                prompts=workload.prompts,
                categories=workload.categories,
                predicted=predicted,
                starter=starting,
                choice=servers.choice(config) if servers else None,
                champion=reigning_champion(config, drafter=self._drafter, target=prepared, logs=self._logs, checks=contract)
                if self._drafter and servers is None
                else None,
                dtype=dtype,
                served_tolerance=config.promote.served_tolerance,
                seed=config.seed,
                store=self._session.store,
                judge=judge(config, self._drafter, workload, lambda: self._opened(prepared), dtype) if self._drafter else None,
            )
        finally:
            self.checks += contract
            if servers is not None:
                servers.close()

    def _attached(self) -> Attached:
        assert self._asked.plain is not None and self._asked.speculative is not None
        seconds = self._config.deploy.request_seconds
        return Attached(
            attach_server(self._asked.plain, request_seconds=seconds), attach_server(self._asked.speculative, request_seconds=seconds)
        )


class Attached:
    """Two servers that run already, as `tasks.benchmark` asks for them. Raises BadInput when they are no such pair."""

    def __init__(self, plain: AttachedServer, speculative: AttachedServer) -> None:
        self._plain, self._speculative = plain, speculative
        one, other = plain.info(), speculative.info()
        if one.get("speculative_algorithm") or not other.get("speculative_algorithm"):
            raise BadInput(
                "--plain, --speculative",
                found=f"servers that speculate with {one.get('speculative_algorithm')} and {other.get('speculative_algorithm')}",
                expected="a server without speculation, and one with",
                do="See whether the addresses are exchanged.",
            )
        differing = [key for key in ("model_path", "dtype", "kv_cache_dtype", "quantization") if one.get(key) != other.get(key)]
        if differing:
            raise BadInput(
                "--plain, --speculative",
                found=", ".join(f"{key}: {one.get(key)} and {other.get(key)}" for key in differing),
                expected="the same target, computed alike",
                do="Start both with the same settings: else their times do not compare.",
            )
        self.setting = Setting(
            steps=other["speculative_num_steps"],
            topk=other.get("speculative_eagle_topk") or 1,
            draft_tokens=other.get("speculative_num_draft_tokens") or 0,
        )
        self.dtype: Any = one.get("dtype") if one.get("dtype") in ("float32", "bfloat16", "float16") else "bfloat16"
        self.key = [plain.url, speculative.url, self.setting.name]

    def choice(self, config: Config) -> CachedChoice:
        """They are as they are: there is nothing to choose."""
        return CachedChoice(settings=dict.fromkeys([config.benchmark.concurrency, *config.benchmark.concurrencies], self.setting))

    def close(self) -> None:
        """The connections; the servers stay."""
        self._plain.close()
        self._speculative.close()

    @contextmanager
    def start(self, setting: Setting | None) -> Iterator[AttachedServer]:
        yield self._speculative if setting else self._plain
