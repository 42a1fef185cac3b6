"""A real server with an API key: on what it listens, what it answers to strangers, and where its key does not stand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tasks.config import DeployConfig
from tasks.deploy import start_server
from tasks.deploy.server import Server
from tasks.report import Silent
from tasks.verdict import Outcome
from tests.security.canary import CANARIES, WORD, beyond_this_machine, command_lines_that_tell, files_that_tell, listening
from tests.verify.drafters import random_drafter

pytestmark = pytest.mark.servers
SETTINGS = {"device": "cpu", "context_length": 512, "max_total_tokens": 2048, "metrics": True, "api_key_env": "SERVING_KEY"}
KEY = {"Authorization": f"Bearer {CANARIES['SERVING_KEY']}"}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keyed")


@pytest.fixture(scope="module")
def server(tiny_target: Path, home: Path) -> Iterator[Server]:
    drafter, config = random_drafter(home / "drafter"), DeployConfig.model_validate(SETTINGS)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**CANARIES, "DRAFTPROOF_HOME": str(home)}.items():
            patch.setenv(name, value)
        with start_server(config, target=tiny_target, drafter=drafter, steps=2, log=home / "log", report=Silent()) as running:
            yield running


def test_it_is_what_was_asked_for(server: Server) -> None:
    assert {check.verdict for check in server.contract} == {Outcome.PASS}, server.contract
    assert server.contract[-1].name == "API key"
    assert server.generate([5, 6, 7, 8], 16).verify_rounds > 0


def test_it_listens_on_this_machine_only(server: Server) -> None:
    sockets = listening([psutil.Process(process.pid) for process in server.processes])
    assert f"127.0.0.1:{server.launch.flags['port']}" in sockets
    assert beyond_this_machine(sockets) == []


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": CANARIES["SERVING_KEY"]}])
def test_a_stranger_is_not_answered(server: Server, headers: dict[str, str]) -> None:
    asked = {"text": "w1", "sampling_params": {"temperature": 0, "max_new_tokens": 2}}
    for path in ("/generate", "/v1/chat/completions", "/flush_cache", "/update_weights_from_disk"):
        assert httpx.post(server.url + path, json=asked, headers=headers).status_code == 401, path
    for path in ("/server_info", "/get_server_info", "/v1/models"):
        assert httpx.get(server.url + path, headers=headers).status_code == 401, path
    for path in ("/health", "/metrics"):  # SGLang leaves them open, for whoever watches it
        assert httpx.get(server.url + path, headers=headers, follow_redirects=True).status_code == 200, path
    assert httpx.post(server.url + "/generate", json=asked, headers=KEY).status_code == 200


def test_its_key_stands_nowhere(server: Server, home: Path) -> None:
    assert "server_args=" in (home / "log").read_text(), "where SGLang would tell it"
    assert files_that_tell(home) == []
    assert command_lines_that_tell() == set()
    for path in ("/server_info", "/metrics/", "/v1/models", "/model_info"):
        assert WORD not in httpx.get(server.url + path, headers=KEY).text, path


def test_its_other_processes_have_no_secret(server: Server) -> None:
    environments = [psutil.Process(process.pid).environ() for process in server.processes]
    told = [{name for name, value in has.items() if WORD in value} for has in environments]
    assert told[0] <= {"SERVING_KEY"} and not set().union(*told[1:]), told
