"""Streamed generations, and servers that were not started by us, over real sockets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tasks.config import DeployConfig
from tasks.deploy import attach_server, start_server
from tasks.deploy.server import Server
from tasks.deploy.stream import largest_batch
from tasks.report import Silent
from tasks.verdict import BadInput, MachineTrouble
from tests.deploy.fake import interpreter


def started(folder: Path, mode: str = "serve") -> Server:
    target = folder / "target"
    target.mkdir()
    (target / "config.json").write_text(json.dumps({"max_position_embeddings": 4096}))
    config = DeployConfig(device="cpu", python=interpreter(folder, mode), start_seconds=20)
    return start_server(config, target=target, drafter=None, steps=None, log=folder / "log", report=Silent())


def test_a_stream_tells_when_the_first_token_came(tmp_path: Path) -> None:
    with started(tmp_path) as server:
        streamed, whole = server.stream([1, 2, 3], 6), server.generate([1, 2, 3], 6)
        assert (streamed.tokens, streamed.prompt_tokens, streamed.first_tokens) == (whole.tokens, whole.prompt_tokens, 1)
        assert 0 < streamed.first_seconds < streamed.seconds - 4 * 0.02
        assert server.largest_batch() == DeployConfig().max_running_requests


def test_an_error_inside_of_a_stream_is_one(tmp_path: Path) -> None:
    with started(tmp_path, "breaks") as server, pytest.raises(MachineTrouble, match="out of memory"):
        server.stream([1, 2, 3], 6)


def test_a_server_of_somebody_else_is_asked_and_left_running(tmp_path: Path) -> None:
    with started(tmp_path) as server:
        with attach_server(server.url + "/", request_seconds=10) as attached:
            assert attached.stream([1, 2], 3).tokens == attached.generate([1, 2], 3).tokens
            attached.flush_cache()
            attached.check_alive()
            assert attached.info()["max_running_requests"] == attached.largest_batch()
        server.check_alive()
        again = attach_server(server.url, request_seconds=10)
    with again, pytest.raises(MachineTrouble, match="does not answer"):
        again.check_alive()


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "nonsense"])
def test_no_server_is_bad_input(url: str) -> None:
    with pytest.raises(BadInput, match="no SGLang server"):
        attach_server(url, request_seconds=10)


def test_the_largest_batch_is_the_graphs_where_there_are_graphs() -> None:
    graphs = {"decode": {"backend": "full", "max_bs": 8}}
    assert largest_batch({"max_running_requests": 48, "cuda_graph_config": graphs}) == 8
    assert largest_batch({"max_running_requests": 4, "cuda_graph_config": graphs}) == 4
    assert largest_batch({"max_running_requests": 48, "cuda_graph_config": {"decode": {"backend": "disabled", "max_bs": 8}}}) == 48
    assert largest_batch({}) is None
