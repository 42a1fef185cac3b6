"""One server of a model takes over from another, with a small process in SGLang's place; the registry is a real one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.kept import TAKE_OVER, died, keep, running, take_over
from flows.serve import start_here, stop_here
from tasks.config import DeployConfig, TargetConfig
from tasks.deploy.kept import kept_servers, stop_kept
from tasks.deploy.ports import free_port
from tasks.ledger import open_ledger
from tasks.promote import Release, find_release
from tasks.report import Silent
from tasks.store import Store
from tasks.target import prepare_target
from tasks.verdict import Outcome, ProofFailed
from tests.deploy.fake import interpreter
from tests.promote.test_registry import promoted
from tests.verify.drafters import random_drafter

MODEL = "tiny-eagle3"
Champion = Callable[..., None]


def release(folder: Path, target: Path, *, mode: str = "serve", lies: dict[str, object] | None = None, **settings: object) -> Release:
    """A drafter of its own in `folder`, that is served by the interpreter of a mode. The folder's name is the seed."""
    folder.mkdir()
    source = TargetConfig(source=str(target), name="tiny")
    python = interpreter(folder, mode, **(lies or {}))
    deploy = {"device": "cpu", "python": python, "start_seconds": 20, "context_length": 256, **settings}
    return Release(
        model=MODEL,
        drafter=random_drafter(folder / "drafter", seed=int(folder.name)),
        target=source,
        target_sha256=prepare_target(source, store=Store(), report=Silent()).sha256,
        deploy=DeployConfig.model_validate(deploy),
        steps=2,
    )


@pytest.fixture
def champion(tiny_target: Path, tmp_path: Path) -> Iterator[Champion]:
    """Promote another drafter, with the arguments of `release`."""
    ledger, seed = open_ledger("tiny"), iter(range(9))

    def promote(**how: Any) -> None:
        promoted(ledger, release(tmp_path / str(next(seed)), tiny_target, **how), Outcome.PASS)

    yield promote
    stop_kept()


def test_a_new_champion_takes_over_from_the_server_that_is_kept(champion: Champion) -> None:
    champion()
    start_here(MODEL)
    old = running(MODEL)
    assert old is not None
    champion()
    (check,) = take_over(open_ledger("tiny"), MODEL, Silent())
    new = running(MODEL)
    assert new is not None and check.verdict is Outcome.PASS and new.url in check.message and "version 2" in check.message
    assert (new.url != old.url, new.drafter != old.drafter, old.alive) == (True, True, False)
    assert [record.url for record in kept_servers()] == [new.url]


@pytest.mark.parametrize("fault", [{"mode": "die"}, {"mode": "silent"}, {"lies": {"max_running_requests": 48}}], ids=str)
def test_whatever_is_wrong_with_the_new_one_the_old_one_stays(champion: Champion, fault: dict[str, object]) -> None:
    champion()
    start_here(MODEL)
    old = running(MODEL)
    champion(**fault)
    (check,) = take_over(open_ledger("tiny"), MODEL, Silent())
    assert (check.name, check.verdict) == (TAKE_OVER, Outcome.WARN)
    assert old is not None and check.message.startswith(f"{old.url} goes on serving the drafter before: ")
    assert running(MODEL) == old and all(process.alive for process in old.processes)
    assert [record.url for record in kept_servers()] == [old.url]


def test_the_command_replaces_too_on_another_port(champion: Champion, capsys: pytest.CaptureFixture[str]) -> None:
    port = free_port("127.0.0.1")
    champion(port=port)
    start_here(f"{MODEL}@champion")
    champion(port=port)
    start_here(f"{MODEL}@champion")
    new = running(MODEL)
    assert new is not None and new.port != port and [record.url for record in kept_servers()] == [new.url]
    assert f"took over from http://127.0.0.1:{port}, which is stopped" in capsys.readouterr().err
    start_here(f"{MODEL}@champion")
    assert f"version 2 runs already: {new.url}" in capsys.readouterr().out
    champion(port=port, lies={"max_running_requests": 48})
    with pytest.raises(ProofFailed, match="max_running_requests"):
        start_here(MODEL)
    assert running(MODEL) == new


def test_nothing_is_started_where_nothing_was_kept(champion: Champion) -> None:
    champion()
    assert take_over(open_ledger("tiny"), MODEL, Silent()) == [] and kept_servers() == []


def test_a_server_that_died_is_told_from_one_that_was_stopped(champion: Champion) -> None:
    champion()
    start_here(MODEL)
    assert not died(MODEL)
    (record,) = kept_servers()
    record.end()
    assert died(MODEL)
    start_here(MODEL)
    stop_here(None)
    assert not died(MODEL) and running(MODEL) is None


def test_a_server_that_is_asked_for_otherwise_is_replaced(champion: Champion) -> None:
    champion()
    start_here(MODEL)
    old, (promoted_release, promotion) = running(MODEL), find_release(open_ledger("tiny").client, MODEL)
    assert old is not None
    for settings in (promoted_release.deploy, promoted_release.deploy.model_copy(update={"port": old.port})):
        assert keep(promoted_release, promotion, settings, Silent()).url == old.url
    kept = keep(promoted_release, promotion, promoted_release.deploy.model_copy(update={"served_name": "other"}), Silent())
    assert kept.ended == old.url != kept.url and not old.alive
