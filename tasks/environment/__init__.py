"""What each stage's interpreter has, and what the machine has: checked before work is spent."""

from __future__ import annotations

from collections.abc import Collection

from tasks.config import Config
from tasks.environment.record import EnvironmentRecord, Side
from tasks.report import Report
from tasks.verdict import Check

__all__ = ["EnvironmentRecord", "check_environment", "compare_sides", "doctor", "has_room_for_server"]


def check_environment(config: Config, *, kept_ports: Collection[int] = (), report: Report, side: Side = "both") -> EnvironmentRecord:
    """Look at every interpreter and at the machine, cheaply: modules are found, not imported (under 5 s).

    `side`: with `serving.pool` each of two machines looks at what it has to do.
    Returns what was found, with a `Check` of kind `environment` for each need; `record.checks` decides.
    Raises MachineTrouble, with the numbers, for too little disk or memory, or a taken port (`kept_ports`: those of servers that
    `draftproof deploy` left running are not).
    """
    from tasks.environment.run import look

    record = look(config, imports=False, kept_ports=kept_ports, side=side)
    for check in record.checks:
        report.say(f"{check.verdict}: {check.message}")
    return record


def compare_sides(config: Config, training: EnvironmentRecord, serving: EnvironmentRecord) -> list[Check]:
    """What has to be the same where it is trained and where it is served: packages, and our own code."""
    from tasks.environment.sides import compare

    return compare(training, serving, other_versions=config.serving.other_versions)


def doctor(config: Config, *, kept_ports: Collection[int] = ()) -> list[Check]:
    """Everything that can be checked without starting anything; really imports what each stage needs (a minute).

    Trouble with the machine is a FAIL among the checks here, so that one call shows everything that is wrong.
    A serving side that is elsewhere (`serving.pool`) is not looked at.
    """
    from tasks.environment.run import look

    side: Side = "training" if config.serving.pool else "both"
    return look(config, imports=True, kept_ports=kept_ports, trouble_raises=False, side=side).checks


def has_room_for_server(config: Config) -> bool:
    """Whether a third server fits beside the two of a benchmark, which run when this is asked."""
    from tasks.environment.machine import has_room_for_server as has_room

    return has_room(config)
