"""The CPU plugin in whole servers: trees, batches, chunks and reused prefixes give the plain server's tokens; refusals answer 400."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tasks.config import DeployConfig
from tasks.deploy import start_server
from tasks.deploy.server import Server
from tasks.report import Silent
from tests.verify.drafters import random_drafter

pytestmark = pytest.mark.servers
SETTINGS = {"device": "cpu", "context_length": 512, "max_total_tokens": 2048, "max_running_requests": 4, "chunked_prefill_size": 64}
TREE = {"topk": 4, "draft_tokens": 8}
NEW = 40


@pytest.fixture(scope="module")
def pair(tiny_target: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    """A plain server, and one that verifies trees."""
    folder = tmp_path_factory.mktemp("servers")
    drafter = random_drafter(folder / "drafter")
    plain = DeployConfig.model_validate(SETTINGS)
    tree = DeployConfig.model_validate({**SETTINGS, **TREE})
    with ThreadPoolExecutor() as threads:
        first = threads.submit(start_server, plain, target=tiny_target, drafter=None, steps=None, log=folder / "plain", report=Silent())
        other = threads.submit(start_server, tree, target=tiny_target, drafter=drafter, steps=3, log=folder / "tree", report=Silent())
        with first.result() as a, other.result() as b:
            yield a, b


def prompts() -> list[list[int]]:
    """Short ones, ones of several chunks, and two that share a long prefix."""
    draw = random.Random(0)
    made = [[draw.randrange(6, 86) for _ in range(length)] for length in (3, 20, 150, 201)]
    return [*made, made[2][:120] + made[0], made[2][:120] + made[1]]


def test_trees_change_no_token(pair: tuple[Server, Server]) -> None:
    plain, tree = pair
    expected = [plain.generate(prompt, NEW).tokens for prompt in prompts()]
    answers = [tree.generate(prompt, NEW) for prompt in prompts()]
    assert [answer.tokens for answer in answers] == expected
    assert sum(answer.right_drafts for answer in answers) > 0, "no branch was ever accepted: the walk was not tested"
    tree.flush_cache()
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(lambda prompt: tree.generate(prompt, NEW).tokens, prompts()))
    assert together == expected


@pytest.mark.parametrize("asked", [{"temperature": 0.7}, {"temperature": 0.7, "sampling_seed": 3}])
def test_sampling_is_refused_by_a_speculative_server_only(pair: tuple[Server, Server], asked: dict[str, float]) -> None:
    answers = [httpx.post(f"{server.url}/generate", json={"input_ids": [7, 8], "sampling_params": asked}, timeout=60) for server in pair]
    assert answers[1].status_code == 400
    assert "answers greedily" in answers[1].text
    assert answers[0].status_code == (400 if "sampling_seed" in asked else 200)
    assert pair[1].generate([7, 8, 9], 4).tokens == pair[0].generate([7, 8, 9], 4).tokens  # and goes on
