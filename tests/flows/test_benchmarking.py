"""A benchmark by itself: what it refuses at once, and two servers that are no pair. Real servers: tests/servers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flows.benchmarking import Attached
from flows.servers import keep_contract
from tasks.benchmark import Setting
from tasks.config import Config
from tasks.verdict import BadInput, Check, Outcome, ProofFailed
from tests.flows.test_cli import draftproof, written

PLAIN = {"model_path": "/target", "dtype": "float32", "speculative_algorithm": None}
SPECULATIVE = {**PLAIN, "speculative_algorithm": "EAGLE3", "speculative_num_steps": 3, "speculative_eagle_topk": 1}


class Described:
    """A server by what it says of itself."""

    def __init__(self, url: str, info: dict[str, Any]) -> None:
        self.url, self._info = url, info

    def info(self) -> dict[str, Any]:
        return self._info


def attached(one: dict[str, Any], other: dict[str, Any]) -> Attached:
    return Attached(Described("http://one", one), Described("http://other", other))  # type: ignore[arg-type]


def test_the_setting_of_a_running_pair_is_read_from_it() -> None:
    tree = {**SPECULATIVE, "speculative_eagle_topk": 2, "speculative_num_draft_tokens": 6}
    assert attached(PLAIN, SPECULATIVE).setting == Setting(steps=3)
    pair = attached(PLAIN, tree)
    assert pair.setting == Setting(steps=3, topk=2, draft_tokens=6)
    config = Config.model_validate({"target": {"source": "/target", "name": "t"}, "benchmark": {"concurrencies": [4]}})
    assert pair.choice(config).settings == {1: pair.setting, 4: pair.setting}
    with pair.start(None) as plain, pair.start(pair.setting) as speculative:
        assert (plain.url, speculative.url) == ("http://one", "http://other")


@pytest.mark.parametrize(
    ("one", "other", "found"),
    [
        (SPECULATIVE, PLAIN, "exchanged"),
        (PLAIN, PLAIN, "speculate with None and None"),
        (PLAIN, {**SPECULATIVE, "dtype": "bfloat16"}, "dtype: float32 and bfloat16"),
        (PLAIN, {**SPECULATIVE, "model_path": "/other"}, "model_path"),
    ],
)
def test_two_servers_that_do_not_compare(one: dict[str, Any], other: dict[str, Any], found: str) -> None:
    with pytest.raises(BadInput, match=found):
        attached(one, other)


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--plain", "http://127.0.0.1:9"], "both addresses"),
        (["--drafter", "/nowhere"], "no folder"),
        (["--set", "benchmark.topk=0"], "topk"),
    ],
)
def test_what_cannot_be_measured_is_refused_at_once(options: list[str], found: str, tmp_path: Path) -> None:
    config = written(tmp_path, {"target": {"source": str(tmp_path), "name": "t"}})
    ended = draftproof("benchmark", config, *options)
    assert ended.returncode == 2 and found in ended.stderr


def test_a_server_that_is_started_again_is_in_the_verdict_once() -> None:
    def found(port: int, verdict: Outcome = Outcome.PASS) -> list[Check]:
        return [Check(name="settings", verdict=verdict, message=f"at port {port}", numbers={"port": port})]

    checks = [Check(name="settings", verdict=Outcome.PASS, message="of another stage")]
    for port in (1, 2):
        keep_contract(checks, found(port), server="plain server")
        keep_contract(checks, found(port + 10), server="server with 2 steps")
    assert [check.message for check in checks] == ["of another stage", "at port 2", "at port 12"]
    with pytest.raises(ProofFailed):
        keep_contract(checks, found(3, Outcome.FAIL), server="plain server")
    assert len(checks) == 3
