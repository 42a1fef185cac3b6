"""`draftproof verify --server`: servers that run already, as they are found in production."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from tasks.config import DeployConfig
from tasks.deploy import start_server
from tasks.report import Silent
from tests.flows.test_cli import draftproof
from tests.tiny import prompts_jsonl
from tests.verify.drafters import BOUNDARIES
from tests.verify.fitted import retouch

pytestmark = pytest.mark.servers
SETTINGS = DeployConfig.model_validate({"device": "cpu", "context_length": 128, "max_total_tokens": 512, "max_running_requests": 2})


@pytest.fixture(scope="module")
def wrongly_fed(fitted_draft: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The drafter with the ids of the next layers, as somebody might copy them from another engine."""
    folder = tmp_path_factory.mktemp("wrong") / "drafter"
    shutil.copytree(fitted_draft, folder, ignore=shutil.ignore_patterns("wiring.json", "probes.safetensors"))
    retouch(folder, eagle_config={"eagle_aux_hidden_state_layer_ids": list(BOUNDARIES)})
    return folder


@pytest.fixture(scope="module")
def urls(fitted_target: Path, wrongly_fed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """A server with the wrongly fed drafter, and a plain one."""
    logs = tmp_path_factory.mktemp("logs")

    def start(drafter: Path | None):
        log = logs / ("speculative" if drafter else "plain")
        return start_server(SETTINGS, target=fitted_target, drafter=drafter, steps=3 if drafter else None, log=log, report=Silent())

    with ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        servers = [stack.enter_context(server) for server in pool.map(start, [wrongly_fed, None])]
        yield servers[0].url, servers[1].url


def asked(drafter: Path, target: Path, urls: tuple[str, str], folder: Path) -> dict:
    out, prompts = folder / "out.json", prompts_jsonl(folder / "prompts.jsonl")
    options = ["--target", target, "--prompts", prompts, "--server", urls[0], "--plain", urls[1], "--json", out]
    done = draftproof("verify", drafter, *options)
    report = json.loads(out.read_text())
    assert done.returncode == report["exit_status"], done.stderr
    return report


def test_a_server_that_feeds_other_boundaries_is_named(
    urls: tuple[str, str], fitted_draft: Path, fitted_target: Path, tmp_path: Path
) -> None:
    report = asked(fitted_draft, fitted_target, urls, tmp_path)
    assert (report["verdict"], report["kind"], report["stage"]) == ("FAIL", "layer-boundaries", "deploy"), report
    assert report["hypothesis"] == "boundaries one too high", report["message"]
    assert "served acceptance" in report["message"] and "eagle_aux_hidden_state_layer_ids" in report["message"]
    verdicts = {check["name"]: check["verdict"] for check in report["checks"]}
    assert verdicts["lossless"] == "PASS" and verdicts["served config.json"] == "WARN"
    assert report["metrics"]["served.accept_length"] < report["metrics"]["verify.accept_length"]


def test_the_same_server_is_healthy_for_the_drafter_that_it_really_serves(
    urls: tuple[str, str], wrongly_fed: Path, fitted_target: Path, tmp_path: Path
) -> None:
    """Poor as it is: its acceptance is what the drafter alone predicts, request by request."""
    report = asked(wrongly_fed, fitted_target, urls, tmp_path)
    assert report["verdict"] in ("PASS", "WARN"), report
    found = next(check for check in report["checks"] if check["name"] == "served acceptance")
    assert found["verdict"] == "PASS" and found["numbers"]["equal_by_count"] == found["numbers"]["answers"] > 8


def test_a_server_without_speculation_is_told(urls: tuple[str, str], fitted_draft: Path, fitted_target: Path, tmp_path: Path) -> None:
    report = asked(fitted_draft, fitted_target, (urls[1], urls[1]), tmp_path)
    assert (report["verdict"], report["kind"]) == ("FAIL", "launch-flags") and "does not speculate" in report["message"]
