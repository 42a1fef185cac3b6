"""The reigning champion in the words of the benchmark, and what came of it in those of the gate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from flows.servers import starter
from tasks.benchmark import Benchmark, Champion, Setting
from tasks.environment import has_room_for_server
from tasks.ledger.store import connect, tracking_uri, usable
from tasks.promote import Duel, Release, find_opponent
from tasks.verdict import Check

if TYPE_CHECKING:
    from tasks.config import Config
    from tasks.products import TargetProduct
    from tasks.stage import StageRun


def reigning_champion(
    config: Config, *, drafter: Path, target: TargetProduct, logs: Path, checks: list[Check]
) -> Callable[[StageRun], Champion] | None:
    """The champion to be measured beside `drafter`; None, and a check that says why, where nothing has to be measured.

    It is served as the candidate is (`config.deploy`), with the setting that it was promoted with: what differs is the drafter.
    What its server resolved is added to `checks`. Raises BadInput for a champion whose files were changed, and MachineTrouble.
    """
    with usable(tracking_uri()):
        found = find_opponent(connect(), config.promote, f"{config.target.name}-eagle3", drafter=drafter, target_sha256=target.sha256)
    if isinstance(found, Check):
        checks.append(found.model_copy(update={"stage": "benchmark"}))
        return None
    release, promotion = found

    def champion(run: StageRun) -> Champion:
        start = starter(config.deploy, target=target.folder, drafter=release.drafter, logs=logs, run=run, contract=checks, role="champion")
        return Champion(
            version=promotion.version,
            setting=_promoted_setting(release, config.benchmark.concurrency),
            start=start,
            has_room=lambda: has_room_for_server(config),
        )

    return champion


def duel(measured: Benchmark) -> Duel | None:
    """Candidate and champion for the gate; None where none was measured."""
    versus = measured.versus
    if versus is None:
        return None
    return Duel(
        version=versus.version,
        setting=str(versus.setting),
        champion_tok_s=versus.figures.output_tok_s,
        candidate_tok_s=versus.candidate_tok_s,
        over=versus.over,
    )


def _promoted_setting(release: Release, concurrency: int) -> Setting:
    """The one that it was found to serve fastest with at this many requests at once; else the one that it is deployed with."""
    if concurrency in release.by_concurrency:
        return Setting.model_validate(release.by_concurrency[concurrency])
    assert release.steps is not None, "a champion was measured"
    return Setting(steps=release.steps, topk=release.deploy.topk, draft_tokens=release.deploy.draft_tokens or 0)
