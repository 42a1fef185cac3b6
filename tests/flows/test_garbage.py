"""`draftproof gc` removes what no kept run needs, and nothing else."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from flows.garbage import collect_here, entries
from tasks.ledger import open_ledger
from tasks.store import locked
from tasks.verdict import BadInput


def product(home: Path, stage: str, key: str) -> Path:
    folder = home / "cache" / stage / key
    folder.mkdir(parents=True)
    (folder / "file").write_bytes(b"x" * 1000)
    return folder


def test_only_what_a_deleted_run_made_is_removed(own_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept, gone = product(own_home, "capture", "kept"), product(own_home, "capture", "gone")
    both, nobodys = product(own_home, "data", "both"), product(own_home, "train", "nobodys")
    ledger = open_ledger("tiny")
    ids = []
    for folder in (kept, gone):
        with ledger.run("run") as run, run.child("capture") as child:
            child.refer({"features": (folder / "hidden_states", "0"), "data": (both / "conversations.jsonl", "0")})
        ids.append((run.id, child.id))
    logs = [own_home / "runs" / run for run, _ in ids]
    for folder in logs:
        folder.mkdir(parents=True)
    for run_id in ids[1]:
        ledger.client.delete_run(run_id)

    needed = {entry.path: entry.kept_for for entry in entries(ledger.client)}
    assert needed == {kept: "capture", gone: None, both: "capture", nobodys: None, logs[0]: ids[0][0], logs[1]: None}
    assert collect_here(yes=False) == 0 and gone.exists()
    assert "3 folders" in capsys.readouterr().out
    assert collect_here(yes=True) == 0
    assert [path.exists() for path in (kept, both, logs[0], gone, nobodys, logs[1])] == [True] * 3 + [False] * 3


def test_what_is_being_made_stays(own_home: Path) -> None:
    fresh, old, held = (product(own_home, "train", f"{name}.partial") for name in ("fresh", "old", "held"))
    for folder in (old, held):
        os.utime(folder, (time.time() - 30 * 86400,) * 2)
    client = open_ledger("tiny").client
    with locked(own_home / "cache" / "train" / "held.lock"):
        needed = {entry.path: entry.kept_for for entry in entries(client)}
    assert needed == {fresh: "unfinished", old: None, held: "unfinished"}


def test_while_a_run_runs_nothing_is_removed(own_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It may have found a product in the cache that it has not put on record yet."""
    nobodys = product(own_home, "train", "nobodys")
    with open_ledger("tiny").run("still at it"):
        assert collect_here(yes=False) == 0
        with pytest.raises(BadInput, match="still at it"):
            collect_here(yes=True)
    assert nobodys.exists()
    assert collect_here(yes=True) == 0 and not nobodys.exists()


def test_what_a_kept_server_serves_stays(own_home: Path) -> None:
    from tasks.deploy.records import ServerRecord
    from tasks.processes import Process

    target, other = product(own_home, "target", "served"), product(own_home, "target", "other")
    here = Process.of(os.getpid())
    assert here is not None
    ServerRecord(
        id="one",
        url="http://127.0.0.1:1",
        port=1,
        log=own_home / "log",
        scratch=own_home / "scratch",
        target=target,
        drafter=None,
        steps=None,
        owner=here,
        supervisor=here,
        processes=[],
        kept=True,
    ).save()
    needed = {entry.path: entry.kept_for for entry in entries(open_ledger("tiny").client)}
    assert needed == {target: "server http://127.0.0.1:1", other: None}
