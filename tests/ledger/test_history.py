"""History, comparison, and the page: from runs that are really in MLflow."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import pytest

from flows.history_page import page
from tasks.ledger import Ledger, open_ledger
from tasks.ledger.compare import compare
from tasks.ledger.history import PastRun, read_history
from tasks.verdict import BadInput

FIGURES = {
    "verify.accuracy_step0": 0.63,
    "verify.accept_length": 2.1,
    "bench.accept_length": 2.09,
    "bench.baseline_tok_s": 20.0,
    "bench.spec_tok_s": 26.0,
    "bench.speedup": 1.3,
    "bench.speedup_low": 1.2,
    "bench.speedup_high": 1.4,
}


def past(ledger: Ledger, name: str, verdict: str, kind: str = "", **changes: float) -> str:
    with ledger.run(name, {"draftproof.commit": "abc"}) as run:
        run.params({"train": {"epochs": changes.pop("epochs", 2)}})
        run.log({**FIGURES, **{key.replace("__", "."): value for key, value in changes.items()}})
        run.tag({"draftproof.verdict": verdict, "draftproof.kind": kind, "draftproof.stage": "promote"})
        with run.child("export") as child:
            child.text("wiring.json", json.dumps({"features": {"boundaries": [0, 2, int(changes.get("last", 4))]}}))
        with run.child("environment") as child:
            seen = [{"process": "serving", "seconds": random.random(), "versions": {"torch": str(changes.get("torch", 1))}}]
            child.text("environment.json", json.dumps({"interpreters": seen, "machine": {"disk_free": random.random()}}))
    return run.id


def test_history_holds_pipeline_runs_of_every_target_in_order() -> None:
    one, other = open_ledger("one"), open_ledger("other")
    first = past(one, "first", "PASS")
    time.sleep(0.01)
    second = past(other, "second", "FAIL", "not-faster")
    with one.run("watch", {}):
        pass  # no pipeline run
    found = read_history(one.client)
    assert [(run.id, run.target, run.verdict, run.kind) for run in found] == [
        (first, "one", "PASS", ""),
        (second, "other", "FAIL", "not-faster"),
    ]
    assert found[0].metrics == FIGURES and not found[0].champion


def test_the_champion_is_marked() -> None:
    ledger = open_ledger("one")
    run = past(ledger, "first", "PASS")
    ledger.client.create_registered_model("one-eagle3")
    version = ledger.client.create_model_version("one-eagle3", source=f"runs:/{run}/drafter", run_id=run)
    ledger.client.set_registered_model_alias("one-eagle3", "champion", version.version)
    assert [found.champion for found in read_history(ledger.client)] == [True]


def test_the_page_stands_alone_and_holds_every_run() -> None:
    ledger = open_ledger("one")
    past(ledger, "good <run>", "PASS")
    past(ledger, "slow", "FAIL", "not-faster", bench__speedup=0.9)
    text = page(read_history(ledger.client))
    assert text.startswith("<!doctype html>") and "good &lt;run&gt;" in text and "not-faster" in text
    assert "<script src" not in text and "<link" not in text
    assert "No pipeline run" in page([])


def test_200_runs_on_one_page(tmp_path: Path) -> None:
    ledger = open_ledger("one")
    past(ledger, "first", "PASS")
    (run,) = read_history(ledger.client)
    many: list[PastRun] = [run.model_copy(update={"id": str(i), "name": f"run {i}"}) for i in range(200)]
    assert page(many).count("<tr>") == 201


def test_what_differs_is_told_and_nothing_else() -> None:
    ledger = open_ledger("one")
    one, other = past(ledger, "a", "PASS"), past(ledger, "b", "WARN", "quality", epochs=3, bench__speedup=1.1, last=5)
    found = compare(ledger.client, one, other)
    assert found["configuration"] == {"train.epochs": ("2", "3")}
    assert found["verdict"] == {"kind": ("", "quality"), "verdict": ("PASS", "WARN")}
    assert found["figures"]["bench.speedup"] == (1.3, 1.1)
    assert found["wiring record"] == {"features.boundaries": ([0, 2, 4], [0, 2, 5])}
    assert not any(compare(ledger.client, one, past(ledger, "a", "PASS")).values()), "times and free space differ always"
    newer = compare(ledger.client, one, past(ledger, "a", "PASS", torch=2))
    assert newer["environment"] == {"interpreters.0.versions.torch": ("1", "2")}
    with pytest.raises(BadInput, match="no such run"):
        compare(ledger.client, one, "0" * 32)
