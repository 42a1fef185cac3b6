"""The Prefect task of the environment check."""

from __future__ import annotations

from collections.abc import Collection

from tasks.config import Config
from tasks.environment import EnvironmentRecord, check_environment
from tasks.report import Silent
from tasks.stage import StageRun, stage_task
from tasks.verdict import Outcome, ProofFailed, Verdict


@stage_task("environment")
def environment(run: StageRun, *, config: Config, kept_ports: Collection[int]) -> EnvironmentRecord:
    """What the interpreters and the machine have. Raises ProofFailed (kind `environment`) for what a stage needs and lacks."""
    record = check_environment(config, kept_ports=kept_ports, report=Silent())
    for check in record.checks:
        if check.verdict is not Outcome.PASS:
            run.say(f"{check.verdict}: {check.message}")
    run.text("environment.json", record.model_dump_json(indent=1))
    verdict = Verdict.of("environment", record.checks, passed="every stage finds what it needs")
    if verdict.verdict.exit_status:
        raise ProofFailed(verdict)
    return record
