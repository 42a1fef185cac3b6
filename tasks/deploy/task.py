"""The Prefect task of link 3: a server that records what its drafter is fed, and the judgement of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tasks.config import DeployConfig
from tasks.deploy import start_server
from tasks.deploy.cache import same_when_warm
from tasks.deploy.generation import Generation
from tasks.stage import StageRun, stage_task
from tasks.verdict import Check, ProofFailed, Verdict

_TOKENS = 24
"""Tokens answered to a probe: some rounds, with features of accepted drafts among them."""

Judge = Callable[[StageRun, Sequence[tuple[list[int], Path]]], list[Check]]
"""Of each probe request its prompt and the folder of what was recorded; every check that was made of it."""


@stage_task("deploy", retries=1)
def deploy(
    run: StageRun,
    *,
    config: DeployConfig,
    target: Path,
    drafter: Path,
    steps: int,
    prompts: Sequence[list[int]],
    judge: Judge,
    served_tolerance: float,
    logs: Path,
) -> list[Check]:
    """Start the server with the drafter, drafting chains, send the golden probes, and judge what was recorded inside of it.

    Each probe is answered again from the filled cache: that must change no acceptance by more than the share `served_tolerance`.
    A launch of its own: what records costs time, and where graphs are used it needs a server without them.
    Raises ProofFailed when the server resolved something else than was asked for, or a link is broken.
    """
    recorded = logs / "probes"
    settings = config.model_copy(update={"port": None, "topk": 1, "draft_tokens": None})
    log = logs / "probed.log"
    folders: list[tuple[list[int], Path]] = []
    cold: list[Generation] = []
    warm: list[Generation] = []
    with start_server(settings, target=target, drafter=drafter, steps=steps, log=log, report=run, probes=recorded) as server:
        checks = list(server.contract)
        for number, prompt in enumerate(prompts):
            name = f"draftproof-probe-{number}"
            server.flush_cache()  # a prefix that is known would not be fed again
            cold.append(server.probe(prompt, _TOKENS, name))
            warm.append(server.probe(prompt, _TOKENS, f"draftproof-warm-{number}"))  # the name of no probe: not recorded
            folders.append((prompt, recorded / name))
            run.progress(number + 1, len(prompts), "probes")
    if prompts and not config.disable_radix_cache:
        checks.append(same_when_warm(cold, warm, tolerance=served_tolerance))
    checks += judge(run, folders)
    verdict = Verdict.of("deploy", checks, passed=f"{len(prompts)} probes: the server feeds and answers as the standalone drafter")
    run.verdict(verdict)
    if verdict.verdict.exit_status:
        raise ProofFailed(verdict)
    return verdict.checks
