"""Link 4 on real servers: the rounds of trees, request by request, are the simulated ones; in lower precision along the served tokens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tasks.config import DeployConfig
from tasks.deploy import start_server
from tasks.report import Silent
from tasks.verdict import Outcome
from tasks.verify import Served, replay_served
from tasks.verify.acceptance import predict_tree
from tasks.verify.checkpoint import read_checkpoint
from tasks.verify.drafter import load_drafter
from tasks.verify.greedy import greedy_text
from tasks.verify.tree import Shape
from tests.verify.drafters import BOUNDARIES
from tests.verify.fitted import PROMPT, conversations
from tests.verify.targets import PlainTarget

pytestmark = pytest.mark.servers
TOKENS = 40


@pytest.mark.parametrize("shape", [Shape(3, 4, 8), Shape(4, 2, 6)], ids=str)
def test_predicted_rounds_of_a_tree_are_the_served_ones(
    shape: Shape, fitted_draft: Path, fitted_target: Path, plain_target: PlainTarget, tmp_path: Path
) -> None:
    prompts = [row[: PROMPT + i % 5] for i, row in enumerate(conversations(fitted_target)[-12:])]
    drafter = load_drafter(read_checkpoint(fitted_draft), plain_target.embedding())
    texts = [greedy_text(plain_target, p, BOUNDARIES, max_new_tokens=TOKENS, overrun=shape.steps) for p in prompts]
    predicted = predict_tree(drafter, texts, shape)
    assert predicted is not None
    config = DeployConfig.model_validate(
        {"device": "cpu", "context_length": 128, "max_total_tokens": 1024, "max_running_requests": 2}
        | {"topk": shape.topk, "draft_tokens": shape.draft_tokens}
    )
    served = []
    with start_server(
        config, target=fitted_target, drafter=fitted_draft, steps=shape.steps, log=tmp_path / "log", report=Silent()
    ) as server:
        for prompt, text in zip(prompts, texts, strict=True):
            server.flush_cache()
            answer = server.generate(prompt, TOKENS)
            assert answer.tokens == text.tokens[len(prompt) : len(prompt) + text.output_tokens]
            served.append((answer.verify_rounds, answer.right_drafts))
    expected = [(p.verify_rounds, sum(n * count for n, count in enumerate(p.histogram))) for p in predicted.per_prompt]
    differing = [i for i, (a, b) in enumerate(zip(served, expected, strict=True)) if a != b]
    assert len(differing) <= predicted.near_ties, (served, expected)
    assert 0 < predicted.right_drafts < predicted.verify_rounds * shape.steps, "right sometimes and wrong sometimes, or nothing is shown"


def test_in_lower_precision_the_served_tokens_are_replayed(
    fitted_draft: Path, fitted_target: Path, plain_target: PlainTarget, tmp_path: Path
) -> None:
    config = DeployConfig.model_validate(
        {"device": "cpu", "dtype": "bfloat16", "context_length": 128, "max_total_tokens": 1024, "max_running_requests": 2}
    )
    prompts = [row[: PROMPT + i % 5] for i, row in enumerate(conversations(fitted_target)[-12:])]
    with start_server(config, target=fitted_target, drafter=fitted_draft, steps=3, log=tmp_path / "log", report=Silent()) as server:
        answers = [server.generate(prompt, TOKENS) for prompt in prompts]
    served = [Served(p, a.tokens, a.verify_rounds, a.right_drafts) for p, a in zip(prompts, answers, strict=True)]
    check = replay_served(fitted_draft, plain_target, served, steps=3, exact=False, tolerance=0.05, device="cpu", report=Silent())
    assert check.verdict is Outcome.PASS, check
    worse = [replace(one, right_drafts=one.right_drafts // 2) for one in served]
    assert (
        replay_served(fitted_draft, plain_target, worse, steps=3, exact=False, tolerance=0.05, device="cpu", report=Silent()).verdict
        is Outcome.FAIL
    )
