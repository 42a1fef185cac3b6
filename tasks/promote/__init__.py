"""Promote: the gates decide, and the registry keeps what they decided."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.config import PromoteConfig
from tasks.promote.gates import gates
from tasks.promote.records import DataSource, Duel, Promotion, Release
from tasks.statistics import Interval
from tasks.verdict import Check, Verdict

if TYPE_CHECKING:
    from mlflow import MlflowClient

__all__ = ["DataSource", "Duel", "Promotion", "Release", "decide", "find_opponent", "find_release", "promote", "rollback", "served_files"]


def decide(config: PromoteConfig, *, checks: Sequence[Check], speedup: Interval, duel: Duel | None = None) -> Verdict:
    """The verdict over every check that was made and the gates of the config. Pure; gates are never retried.

    `speedup` is plain time / speculative time; `duel` the champion measured beside the candidate, None where there was none.
    The verdict's kind is the worst check's, `not-faster` for the speed gate, `worse-than-champion` for the other.
    """
    made = [*checks, *gates(config, checks=checks, speedup=speedup, duel=duel)]
    return Verdict.of("promote", made, passed=f"every check passed; served {speedup.value:.2f} times as fast as the plain target")


def promote(client: MlflowClient, *, experiment: str, run_id: str, release: Release, verdict: Verdict) -> Promotion:
    """Register the drafter, files uploaded, as `champion` if the verdict is a pass, else as `challenger` with the reason.

    A verdict that is no pass leaves the champion as it was. Promotions on one machine wait for each other.
    Raises ProofFailed (INVALID), after registering it as `challenger`, when a pass was measured beside another champion than
    the one that it would replace.
    Raises MLflow's own errors when the registry cannot be used, and then leaves both aliases as they were.
    """
    from tasks.promote.registry import register

    return register(client, experiment=experiment, run_id=run_id, release=release, verdict=verdict)


def served_files(client: MlflowClient) -> set[str]:
    """`files_sha256` of every version in the registry that was promoted by us: what a deployment may still ask for."""
    from tasks.promote.registry import files_of_versions

    return files_of_versions(client)


def rollback(client: MlflowClient, model: str, *, by: str, why: str) -> tuple[Promotion, Promotion]:
    """Make the previous champion the champion again: (the version that was, the one that is now). Both say so in a tag.

    Raises BadInput: no champion, none before it, or a version before it that was deleted.
    """
    from tasks.promote.registry import roll_back

    return roll_back(client, model, by=by, why=why)


def find_opponent(
    client: MlflowClient, config: PromoteConfig, model: str, *, drafter: Path, target_sha256: str
) -> tuple[Release, Promotion] | Check:
    """The champion that a candidate has to be measured beside; else a passed check that says why there is none.

    None is measured with the gate off, without a champion, for one of another target, and for the same drafter.
    Raises BadInput for a champion whose files are not those that were promoted.
    """
    from tasks.promote.registry import opponent

    return opponent(client, config, model, drafter=drafter, target_sha256=target_sha256)


def find_release(client: MlflowClient, model: str, alias: str = "champion") -> tuple[Release, Promotion]:
    """What was promoted, its files fetched and found to be the promoted bytes.

    Raises BadInput: no such model or alias, or files that are not those that were promoted.
    """
    from tasks.promote.registry import find

    return find(client, model, alias)
