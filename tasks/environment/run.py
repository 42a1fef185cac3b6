"""The look itself: two interpreters at the same time, then the machine."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import tasks
from tasks.config import Config
from tasks.environment import machine as machines
from tasks.environment.needs import PROCESSES, SAME_EVERYWHERE, WRITTEN_FOR, advice, stages_of
from tasks.environment.probe import probe
from tasks.environment.record import EnvironmentRecord, Interpreter, Machine, Side
from tasks.environment.sides import code_sha256
from tasks.store import home, need_disk
from tasks.verdict import Check, DraftproofError, Outcome
from tasks.wiring.kinds import Kind


def look(
    config: Config, *, imports: bool, kept_ports: Collection[int] = (), trouble_raises: bool = True, side: Side = "both"
) -> EnvironmentRecord:
    """Everything there is to find out; `kept_ports` are those of servers that `draftproof deploy` left running.

    Without `trouble_raises` the machine's trouble and bad input are FAIL checks too.
    """
    processes = PROCESSES[side]
    with ThreadPoolExecutor(len(processes)) as threads:
        looked = [threads.submit(probe, process, config, imports=imports) for process in processes]
    found = machines.machine()
    disk, memory = machines.disk_needed(config, side), machines.memory_needed(config, side)
    needs: list[tuple[str, str, Callable[[], object]]] = [
        ("device", f"GPUs: {found.gpus or 'none'}", lambda: machines.need_device(config, found, side)),
        ("disk", _disk_message(found, disk), lambda: need_disk(home(), disk or 0, "this run")),
        ("memory", f"{found.memory_available / 1e9:.1f} GB free, {memory / 1e9:.1f} needed", lambda: machines.need_memory(found, memory)),
        *((f"{process} interpreter", "it answers", result.result) for process, result in zip(processes, looked, strict=True)),
    ]
    if side != "training":
        needs.append(("port", f"port: {config.deploy.port or 'any'}", lambda: machines.need_port(config, kept_ports)))
    checks = [_held(name, message, need, trouble_raises=trouble_raises) for name, message, need in needs]
    interpreters = [result.result() for result in looked if result.exception() is None]
    for interpreter in interpreters:
        checks += [_stage_check(interpreter, stage, modules) for stage, modules in stages_of(interpreter.process, config).items()]
        checks.append(_versions_check(interpreter))
    checks += [_tasks_check(interpreter) for interpreter in interpreters if interpreter.process != "serving"]
    if side == "both" and len(interpreters) == len(processes):
        checks.append(_same_versions_check(*interpreters))
    return EnvironmentRecord(
        interpreters=interpreters, machine=found, code=code_sha256(), disk_needed=disk, memory_needed=memory, checks=checks
    )


def _held(name: str, well: str, need: Callable[[], object], *, trouble_raises: bool) -> Check:
    """Turn a need that raises into a check, or let it raise."""
    try:
        need()
    except DraftproofError as error:
        if trouble_raises:
            raise
        return _check(name, False, wrong=str(error), numbers={"exit_status": error.exit_status})
    return _check(name, True, well=well)


def _disk_message(found: Machine, needed: int | None) -> str:
    free = f"{found.disk_free / 1e9:.1f} GB free"
    return (
        f"{free}, {needed / 1e9:.1f} needed" if needed is not None else f"{free}; the target's sizes are not known yet, capture estimates"
    )


def _stage_check(interpreter: Interpreter, stage: str, modules: tuple[str, ...]) -> Check:
    missing = {module: reason for module, reason in interpreter.missing.items() if module in modules}
    listed = "; ".join(f"{module} ({reason})" for module, reason in missing.items())
    where = f"{interpreter.executable} (Python {interpreter.python})"
    return _check(
        f"modules of stage {stage}",
        not missing,
        well=f"stage {stage} finds {', '.join(modules)} in {where}",
        wrong=f"stage {stage} cannot have {listed} in {where}: {advice(stage)}",
        numbers={"executable": interpreter.executable, "missing": missing},
    )


def _versions_check(interpreter: Interpreter) -> Check:
    """A version that this project was not written for: what it knows of speculators and SGLang holds for one version."""
    versions = interpreter.versions
    other = {name: [versions[name], pin] for name, pin in WRITTEN_FOR.items() if versions.get(name) not in (None, pin)}
    return _check(
        f"versions of the {interpreter.process} interpreter",
        not other,
        well=f"{interpreter.executable} has the versions that this project was written for",
        wrong=f"{interpreter.executable} has other versions than this project was written for (found, expected): {other}",
        numbers={"other": other},
        otherwise=Outcome.WARN,
    )


def _same_versions_check(pipeline: Interpreter, serving: Interpreter) -> Check:
    pairs = {name: [pipeline.versions.get(name), serving.versions.get(name)] for name in SAME_EVERYWHERE}
    apart = {name: pair for name, pair in pairs.items() if None not in pair and pair[0] != pair[1]}
    return _check(
        "same versions in both interpreters",
        not apart,
        well=f"{', '.join(SAME_EVERYWHERE)} have the same versions where it is trained and where it is served",
        wrong=f"trained and served with different versions (pipeline, serving): {apart}",
        numbers={"apart": apart},
        otherwise=Outcome.WARN,
    )


def _tasks_check(interpreter: Interpreter) -> Check:
    """A foreign `tasks` package in the working directory or on PYTHONPATH would be what a subprocess imports."""
    ours = str(Path(tasks.__file__).resolve())
    found = str(Path(interpreter.tasks_from).resolve()) if interpreter.tasks_from else None
    return _check(
        "origin of tasks",
        found == ours,
        well=f"`tasks` comes from {ours}",
        wrong=f"`tasks` comes from {found} in a new process, ours is {ours}: leave that working directory, or clear PYTHONPATH",
        numbers={"found": found, "ours": ours},
    )


def _check(
    name: str, fine: bool, *, well: str = "", wrong: str = "", numbers: dict[str, object] | None = None, otherwise: Outcome = Outcome.FAIL
) -> Check:
    verdict, kind = (Outcome.PASS, None) if fine else (otherwise, Kind.ENVIRONMENT)
    return Check(name=name, verdict=verdict, kind=kind, message=well if fine else wrong, numbers=numbers or {})
