"""Products are made once per content, never half, and never served when their bytes changed."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from unittest.mock import patch

import pytest

from tasks.store import Store, code_digest, lent_machine, machine, need_disk, write_atomic
from tasks.verdict import BadInput, MachineTrouble


def test_a_run_waits_for_a_job_that_a_killed_run_has_left_behind() -> None:
    """On its own machine the run's jobs in a worker take what it lends, and not the machine itself."""
    said: list[str] = []
    with machine(said.append), lent_machine():
        assert said == []
    job, order = lent_machine(), []

    def next_run() -> None:
        with machine(said.append):
            order.append("run")

    with job:
        thread = threading.Thread(target=next_run)
        thread.start()
        while not said:
            time.sleep(0.01)
        order.append("job")
    thread.join(10)
    assert order == ["job", "run"] and said == ["a job of an earlier run still has the machine: waiting for it"]


def build(text: str, calls: list[str]):  # type: ignore[no-untyped-def]
    def into(folder: Path) -> dict[str, str]:
        calls.append(text)
        (folder / "a.txt").write_text(text)
        return {"file": "a.txt"}

    return into


def test_made_once_per_content(tmp_path: Path) -> None:
    store, calls = Store(tmp_path), []
    one, two = store.key("train", {"lr": 1}), store.key("train", {"lr": 2})
    assert store.make("train", one, build("one", calls)) == store.make("train", one, build("one", calls)) == {"file": "a.txt"}
    store.make("train", two, build("two", calls))
    assert calls == ["one", "two"] and store.hits == {"train"}


def test_an_interrupted_build_goes_on_where_it_was(tmp_path: Path) -> None:
    store = Store(tmp_path)

    def dies(folder: Path) -> dict[str, str]:
        (folder / "half").write_text("1")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.make("data", "k", dies)
    assert store.find("data", "k") is None
    store.make("data", "k", lambda folder: {"found": (folder / "half").read_text()})
    assert store.find("data", "k") == {"found": "1"}


def test_what_a_kill_left_of_a_write_is_no_part_of_the_product(tmp_path: Path) -> None:
    """Else an interrupted run would ship, and hash, another folder than one that was not interrupted."""
    store = Store(tmp_path)

    def killed(folder: Path) -> dict[str, str]:
        (folder / "sub").mkdir()
        with patch("os.fsync", side_effect=KeyboardInterrupt), patch.object(Path, "unlink"), pytest.raises(KeyboardInterrupt):
            write_atomic(folder / "sub" / "a.txt", "x")  # nothing after fsync is done by a process that is killed there
        assert len(list((folder / "sub").iterdir())) == 1
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.make("export", "k", killed)
    store.make("export", "k", build("x", []))
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()} == {
        "cache/export/k.lock",
        "cache/export/k/a.txt",
        "cache/export/k/product.json",
    }


def test_changed_bytes_are_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.make("export", "k", build("x", []))
    (store.folder("export", "k") / "a.txt").write_text("y")
    with pytest.raises(BadInput, match=r"a\.txt.*other bytes"):
        store.find("export", "k")


def test_a_forced_refresh_makes_it_again(tmp_path: Path) -> None:
    calls: list[str] = []
    Store(tmp_path).make("train", "k", build("x", calls))
    Store(tmp_path, refresh=frozenset({"train"})).make("train", "k", build("x", calls))
    assert len(calls) == 2 and Store(tmp_path).find("train", "k")


def test_too_little_disk_names_both_numbers(tmp_path: Path) -> None:
    with pytest.raises(MachineTrouble, match=r"GB free; capture needs about 1000000\.0 GB"):
        need_disk(tmp_path, 10**15, "capture")


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_atomic(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomic(path, "\ud800")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_code_digest_follows_the_source() -> None:
    assert code_digest("store.py") != code_digest("verdict.py") and code_digest("wiring") == code_digest("wiring")
