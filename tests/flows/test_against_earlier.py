"""A pipeline run against the earlier ones in the ledger."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.chain import Chain
from flows.pipeline import against_earlier
from flows.progress import PlainLines
from flows.session import Session
from tasks.config import Config, TargetConfig
from tasks.ledger import Ledger, open_ledger
from tasks.store import Store
from tasks.verdict import Check, Outcome, Verdict

HEALTHY = {"train.accuracy_step0": 0.6, "verify.accuracy_step0": 0.6, "verify.accept_length": 2.0, "bench.accept_length": 2.0}
PASSED = Verdict.of("promote", [Check(name="faster", verdict=Outcome.PASS, message="1.2")], passed="all well")


@pytest.fixture
def ledger() -> Ledger:
    """With three healthy runs of this machine."""
    opened = open_ledger("tiny")
    for i in range(3):
        with opened.run(f"earlier {i}", {"draftproof.commit": "abc"}) as run:
            run.log(HEALTHY)
            run.tag({"draftproof.verdict": "PASS", "draftproof.kind": "", "draftproof.stage": "promote"})
    return opened


def test_a_pass_that_fell_behind_is_an_alarm_of_the_stage_that_fell(ledger: Ledger, tmp_path: Path) -> None:
    config = Config(target=TargetConfig(source="/somewhere", name="tiny"))
    with ledger.run("now", {"draftproof.commit": "abc"}) as run:
        session = Session(run, PlainLines(), Store())
        chain = Chain(config, session, Store(), tmp_path)
        session.headline(HEALTHY)
        same = against_earlier(PASSED, chain, session, ledger)
        assert (same.verdict, same.message, len(same.checks)) == (Outcome.PASS, "all well", 3)
        session.headline({"bench.accept_length": 1.94})
        fallen = against_earlier(PASSED, chain, session, ledger)
    assert (fallen.verdict, fallen.kind, fallen.stage) == (Outcome.FAIL, "runtime-interaction", "benchmark")
