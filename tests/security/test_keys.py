"""API keys come from the environment and go nowhere but into a header: servers over real processes, with a small one in SGLang's place."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tasks import config as configs
from tasks.config import DeployConfig
from tasks.deploy import attach_server, check_launch, start_server
from tasks.deploy.client import _without_secrets
from tasks.deploy.server import Server
from tasks.report import Silent
from tasks.verdict import BadInput, Outcome
from tests.deploy.fake import interpreter
from tests.security.canary import CANARIES, WORD, command_lines_that_tell, files_that_tell

KEY = CANARIES["SERVING_KEY"]
Start = Callable[..., Server]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    for name, value in CANARIES.items():
        monkeypatch.setenv(name, value)
    target = tmp_path / "target"
    target.mkdir()
    (target / "config.json").write_text(json.dumps({"max_position_embeddings": 4096}))

    def begin(mode: str = "serve", **config: object) -> Server:
        settings = {"device": "cpu", "python": interpreter(tmp_path, mode), "start_seconds": 20, "api_key_env": "SERVING_KEY", **config}
        return start_server(
            DeployConfig.model_validate(settings), target=target, drafter=None, steps=None, log=tmp_path / "server.log", report=Silent()
        )

    return begin


@pytest.fixture
def server(start: Start) -> Iterator[Server]:
    with start() as running:
        yield running


def test_the_key_is_asked_for_and_sent(server: Server) -> None:
    assert server.contract[-1].name == "API key" and {check.verdict for check in server.contract} == {Outcome.PASS}
    assert len(server.generate([1, 2], 3).tokens) == len(server.stream([1, 2], 3).tokens) == 3
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": KEY}):
        assert httpx.get(f"{server.url}/model_info", headers=headers).status_code == 401


def test_it_stands_on_no_command_line_and_in_no_file(server: Server, own_home: Path, tmp_path: Path) -> None:
    assert command_lines_that_tell() == set()
    assert files_that_tell(own_home) == files_that_tell(tmp_path) == []
    told = [json.dumps(server.launch.record()), repr(server.launch), repr(vars(server.launch)), json.dumps(server.info())]
    assert not [text for text in told if WORD in text]


def test_a_server_has_no_secrets_that_are_not_its_own(server: Server) -> None:
    has = psutil.Process(server.pid).environ()
    assert {name for name, value in has.items() if WORD in value} == {"SERVING_KEY"}


def test_a_server_that_does_not_ask_for_its_key_is_found_out(start: Start) -> None:
    with start("open") as server:
        assert (server.contract[-1].verdict, server.contract[-1].kind) == (Outcome.FAIL, "launch-flags")
        assert "status 200, expected 401" in server.contract[-1].message


@pytest.mark.parametrize("value", ["", "two words", "schlüssel", "line\nbreak"])
def test_a_key_that_is_not_there_is_bad_input_before_anything_starts(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("SERVING_KEY", value)
    with pytest.raises(BadInput, match="SERVING_KEY") as caught:
        start()
    assert not (tmp_path / "server.log").exists() and (not value or value not in str(caught.value))
    with pytest.raises(BadInput, match="SERVING_KEY"):  # so does `draftproof doctor`
        check_launch(DeployConfig(api_key_env="SERVING_KEY"), target=tmp_path / "target", drafter=None, steps=None, ask_sglang=False)


def test_a_server_of_somebody_else_is_asked_with_the_key_of_the_environment(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match=r"asks for an API key; expected its key in .* DRAFTPROOF_API_KEY"):
        attach_server(server.url, request_seconds=10)
    monkeypatch.setenv("DRAFTPROOF_API_KEY", "wrong")
    with pytest.raises(BadInput, match="refuses ours"):
        attach_server(server.url, request_seconds=10)
    monkeypatch.setenv("DRAFTPROOF_API_KEY", KEY)
    with attach_server(server.url, request_seconds=10) as attached:
        assert len(attached.stream([1], 4).tokens) == 4
        attached.check_alive()


def test_an_address_with_a_password_is_refused(server: Server) -> None:
    with pytest.raises(BadInput, match="DRAFTPROOF_API_KEY") as caught:
        attach_server(server.url.replace("://", f"://me:{KEY}@"), request_seconds=10)
    assert WORD not in str(caught.value)


def test_what_a_foreign_server_tells_of_its_key_is_dropped() -> None:
    """SGLang 0.5.23 repeats a key of its command line in `/server_info`, twice."""
    info = {"api_key": KEY, "admin_api_key": None, "launch_command": f"--api-key {KEY}", "dtype": "float32"}
    assert _without_secrets(info) == {"api_key": "***", "admin_api_key": None, "launch_command": "***", "dtype": "float32"}
    assert _without_secrets({"api_key": None, "launch_command": "--port 1"}) == {"api_key": None, "launch_command": "--port 1"}


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["deploy.host=0.0.0.0"], "host 0.0.0.0 is open to other machines"),
        (["deploy.host='::'"], "host :: is open"),
        (["deploy.host=gpu-1.example"], "open to other machines"),
        (["deploy.host=''"], "open to other machines"),
        (["deploy.api_key_env=sk-123"], "deploy.api_key_env"),
        (["deploy.host=127.0.0.2"], None),
        (["deploy.host='::1'"], None),
        (["deploy.host=localhost"], None),
        (["deploy.host=0.0.0.0", "deploy.api_key_env=KEY"], None),
    ],
)
def test_other_machines_reach_a_server_with_a_key_alone(tmp_path: Path, overrides: list[str], says: str | None) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("target: {source: x, name: x}\n")
    if says is None:
        assert configs.load(path, overrides).deploy.host
    else:
        with pytest.raises(BadInput, match=says):
            configs.load(path, overrides)
