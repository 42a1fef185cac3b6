"""The real SGLang: a plain and a speculative server side by side, and what is left when their owner is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tasks.config import DeployConfig
from tasks.deploy import start_server
from tasks.deploy.contract import differing
from tasks.deploy.preflight import preflight
from tasks.deploy.server import Server
from tasks.report import Silent
from tasks.verdict import MachineTrouble, Outcome
from tests.verify.drafters import random_drafter

pytestmark = pytest.mark.servers
ROOT = Path(__file__).resolve().parents[2]
SETTINGS = {"device": "cpu", "context_length": 512, "max_total_tokens": 2048}
STEPS = 2


def _tell(text: str) -> None:
    """A measurement, for who runs pytest with -s."""
    sys.stdout.write(text + "\n")


@pytest.fixture(scope="module")
def pair(tiny_target: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    """A plain and a speculative server on the tiny target, started at the same time."""
    folder = tmp_path_factory.mktemp("servers")
    drafter = random_drafter(folder / "drafter")
    config = DeployConfig.model_validate(SETTINGS)

    def start(name: str, draft: Path | None, steps: int | None) -> Server:
        return start_server(config, target=tiny_target, drafter=draft, steps=steps, log=folder / f"{name}.log", report=Silent())

    with ThreadPoolExecutor() as threads:
        starts = [threads.submit(start, "plain", None, None), threads.submit(start, "speculative", drafter, STEPS)]
        plain, speculative = (s.result() for s in starts)
    _tell(f"ready after {plain.seconds_to_ready:.0f} and {speculative.seconds_to_ready:.0f} s")
    with plain, speculative:
        yield plain, speculative
    assert not any(p.alive for s in (plain, speculative) for p in s.processes)


def test_what_was_asked_is_what_runs(pair: tuple[Server, Server]) -> None:
    for server in pair:
        assert {c.verdict for c in server.contract} == {Outcome.PASS}, server.contract
        assert len(server.contract) == 3 and server.contract[0].numbers["settings"] > 50
    differences = differing(pair[0].info(), pair[1].info())
    other = [name for name in differences if not name.startswith(("speculative_", "_speculative"))]
    assert sorted(set(other) - {"port", "weight_version"}) == [], differences


def test_speculation_changes_no_token_and_is_counted(pair: tuple[Server, Server]) -> None:
    plain, speculative = pair
    rounds = right = 0
    for prompt in ([5, 6, 7, 8], [10, 20, 30], list(range(6, 46))):
        expected, got = plain.generate(prompt, 48), speculative.generate(prompt, 48)
        assert got.tokens == expected.tokens
        assert (expected.verify_rounds, expected.histogram) == (0, ())
        assert sum(got.histogram) == got.verify_rounds and len(got.histogram) <= STEPS + 1
        assert sum(k * n for k, n in enumerate(got.histogram)) == got.right_drafts
        assert got.proposed_drafts == STEPS * got.verify_rounds
        rounds, right = rounds + got.verify_rounds, right + got.right_drafts
    assert rounds > 0 and 1 <= 1 + right / rounds <= STEPS + 1


def test_two_running_servers_are_benchmarked(pair: tuple[Server, Server]) -> None:
    """As `draftproof benchmark --plain --speculative` does: streamed, flushed, and left running."""
    from flows.benchmarking import Attached
    from tasks.benchmark import benchmark_drafter, render
    from tasks.config import Config
    from tasks.deploy import attach_server

    benchmark = {"prompts": 6, "output_tokens": 24, "concurrencies": [2], "min_output_tokens": 64}
    config = Config.model_validate({"target": {"source": "/", "name": "tiny"}, "benchmark": benchmark})
    servers = Attached(*(attach_server(server.url, request_seconds=60) for server in pair))
    assert servers.setting.steps == STEPS and servers.dtype == "float32"
    found = benchmark_drafter(
        config.benchmark,
        prompts=[list(range(6 + i, 26 + i)) for i in range(6)],
        predicted={},
        start=servers.start,
        dtype=servers.dtype,
        served_tolerance=0.05,
        choice=servers.choice(config),
        seed=0,
        report=Silent(),
    )
    servers.close()
    _tell(render(found))
    assert found.failures == 0
    verdicts = {check.name: check.verdict for check in found.checks if check.name not in ("quiet machine", "concurrency 2")}
    assert set(verdicts.values()) == {Outcome.PASS}, found.checks
    for point in found.points:
        assert point.identical == point.compared
        assert 0 < point.plain.ttft.p50 < point.plain.end_to_end.p50
        assert sum(point.acceptance.histogram) == point.acceptance.verify_rounds
    assert all(row.first_tokens == 1 for row in found.rows if row.server == "plain" and row.phase == "final")


def test_prefixes_are_reused_until_the_cache_is_flushed(pair: tuple[Server, Server]) -> None:
    for server in pair:
        prompt = list(range(40, 80))
        server.generate(prompt, 4)
        assert server.generate(prompt, 4).cached_tokens > 30
        server.flush_cache()
        assert server.generate(prompt, 4).cached_tokens == 0


def test_both_fit_in_memory(pair: tuple[Server, Server]) -> None:
    share = sum(psutil.Process(p.pid).memory_full_info().pss for server in pair for p in server.processes)
    _tell(f"two servers: {share / 1e9:.2f} GB (PSS)")
    assert share < 9e9


def test_a_killed_scheduler_is_noticed(pair: tuple[Server, Server]) -> None:
    """The last test of the pair: it ends the speculative server."""
    server = pair[1]
    scheduler = next(p for p in server.processes if "scheduler" in psutil.Process(p.pid).name())
    os.kill(scheduler.pid, signal.SIGKILL)
    with pytest.raises(MachineTrouble, match=r"speculative \(2 steps\) server|a generation failed"):
        server.generate([5, 6, 7], 64)
    pair[0].check_alive()


def test_the_preflight_takes_the_command_without_a_server(tiny_target: Path, pair: tuple[Server, Server]) -> None:
    checks = preflight(pair[0].launch)
    assert {c.verdict for c in checks} == {Outcome.PASS}, checks


OWNER = """
import json, sys, time
from pathlib import Path
from tasks.config import DeployConfig
from tasks.deploy import start_server
from tasks.report import Silent
config = DeployConfig.model_validate(json.loads(sys.argv[1]))
with start_server(config, target=Path(sys.argv[2]), drafter=None, steps=None, log=Path(sys.argv[3]), report=Silent()) as server:
    print(json.dumps([p.pid for p in server.processes]), flush=True)
    time.sleep(600)
"""


def test_kill_9_of_the_owner_leaves_no_process(tiny_target: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", OWNER, json.dumps(SETTINGS), str(tiny_target), str(tmp_path / "log")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pids = json.loads(owner.stdout.readline())
        assert len(pids) >= 3 and all(psutil.pid_exists(pid) for pid in pids)
        owner.kill()
    deadline = time.monotonic() + 20
    while any(map(psutil.pid_exists, pids)):
        assert time.monotonic() < deadline, pids
        time.sleep(0.1)
