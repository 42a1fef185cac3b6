"""The Prefect task of the environment check."""

from __future__ import annotations

from collections.abc import Callable, Collection

from tasks.config import Config
from tasks.environment import EnvironmentRecord, check_environment, compare_sides
from tasks.report import Silent
from tasks.stage import StageRun, stage_task
from tasks.verdict import Check, Outcome, ProofFailed, Verdict

SERVING = "serving side: "
"""Before the names of the checks that another machine made."""


@stage_task("environment")
def environment(
    run: StageRun, *, config: Config, kept_ports: Collection[int], ask_serving: Callable[[StageRun], EnvironmentRecord] | None
) -> list[Check]:
    """What the interpreters and the machine have. Raises ProofFailed (kind `environment`) for what a stage needs and lacks.

    `ask_serving` looks at a serving side that is elsewhere; None = this machine serves.
    """
    record = check_environment(config, kept_ports=kept_ports, report=Silent(), side="training" if ask_serving else "both")
    run.text("environment.json", record.model_dump_json(indent=1))
    checks = list(record.checks)
    if ask_serving is not None:
        there = ask_serving(run)
        run.text("environment-serving.json", there.model_dump_json(indent=1))
        checks += [check.model_copy(update={"name": SERVING + check.name, "message": SERVING + check.message}) for check in there.checks]
        checks += compare_sides(config, record, there)
    for check in checks:
        if check.verdict is not Outcome.PASS:
            run.say(f"{check.verdict}: {check.message}")
    verdict = Verdict.of("environment", checks, passed="every stage finds what it needs")
    if verdict.verdict.exit_status:
        raise ProofFailed(verdict)
    return checks
