"""K13 to K16 as real servers show them: flags that become others, caches that matter, faked acceptance, texts that part.

What is refused before a launch is let through here (`altered`), to see what such a server does and that it is named then too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tasks.benchmark import Benchmark, CachedChoice, Prediction, Setting, benchmark_drafter
from tasks.config import BenchmarkConfig, DeployConfig
from tasks.deploy import check_running, start_server
from tasks.deploy.cache import same_when_warm
from tasks.deploy.contract import compare
from tasks.deploy.generation import Generation
from tasks.deploy.launch import Launch, plan
from tasks.deploy.server import Server
from tasks.report import Silent
from tasks.verdict import Check, Outcome, ProofFailed
from tasks.verify import Texts, check_lossless
from tasks.verify.acceptance import predict
from tasks.verify.checkpoint import read_checkpoint
from tasks.verify.drafter import load_drafter
from tasks.verify.greedy import greedy_text
from tests.benchmark.measuring import bad
from tests.verify.drafters import BOUNDARIES, VOCAB
from tests.verify.fitted import conversations
from tests.verify.targets import PlainTarget

pytestmark = pytest.mark.servers
SETTINGS = {"device": "cpu", "context_length": 128, "max_total_tokens": 512, "max_running_requests": 2}
STEPS, TOKENS = 3, 24
SETTING = Setting(steps=STEPS)

# Flags and environment variables in which a launch is altered after it was planned, by the name that the model is served under.
ALTERED: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    # EAGLE with an EAGLE-3 drafter; one step with 16 draft tokens; the overlap schedule, which SGLang switches off beside them.
    "misasked": ({"speculative_algorithm": "EAGLE", "speculative_num_draft_tokens": 16, "disable_overlap_schedule": False}, {}),
    "faked": ({}, {"SGLANG_SIMULATE_ACC_LEN": str(STEPS + 1), "SGLANG_SIMULATE_ACC_TOKEN_MODE": "real-draft-token"}),
}


@pytest.fixture(scope="module")
def mode(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is wrong inside of the server with the hook: see `spoiling.Spoiler`."""
    path = tmp_path_factory.mktemp("mode") / "mode"
    path.write_text("healthy")
    return path


@pytest.fixture(scope="module")
def servers(fitted_target: Path, fitted_draft: Path, mode: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    """All of them, started at the same time: a start is mostly imports."""
    folder = tmp_path_factory.mktemp("servers")
    hook = {"name": "spoiling", "hook_factory": "spoiling:hook", "target_modules": ["model", "logits_processor"]}
    hooked = {"forward_hooks": [{**hook, "config": {"mode": str(mode), "vocab_size": VOCAB}}]}, {"PYTHONPATH": str(Path(__file__).parent)}
    steps = {"plain": None, "hooked": STEPS, "uncached": STEPS, "misasked": 1, "faked": STEPS}

    def planned(config: DeployConfig, **arguments: Any) -> Launch:
        made = plan(config, **arguments)
        flags, environment = {**ALTERED, "hooked": hooked}.get(config.served_name or "", ({}, {}))
        return replace(made, flags={**made.flags, **flags}, environment={**made.environment, **environment})

    def start(name: str) -> Server:
        config = DeployConfig.model_validate({**SETTINGS, "served_name": name, "disable_radix_cache": name == "uncached"})
        drafter = fitted_draft if steps[name] else None
        return start_server(config, target=fitted_target, drafter=drafter, steps=steps[name], log=folder / name, report=Silent())

    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack, ThreadPoolExecutor() as threads:
        patch.setenv("DRAFTPROOF_HOME", str(folder / "home"))
        patch.setenv("SGLANG_SIMULATE_ACC_LEN", str(STEPS + 1))  # ours, which no server may inherit
        patch.setattr("tasks.deploy.server.plan", planned)
        patch.setattr("tasks.deploy.server._refuse", lambda launch: None)
        yield {name: stack.enter_context(server) for name, server in zip(steps, list(threads.map(start, steps)), strict=True)}


@pytest.fixture
def plain(servers: dict[str, Server]) -> Server:
    return servers["plain"]


@pytest.fixture
def hooked(servers: dict[str, Server]) -> Server:
    """A healthy server, unless `mode` says otherwise."""
    return servers["hooked"]


@pytest.fixture(scope="module")
def prompts(fitted_target: Path) -> list[list[int]]:
    """Beginnings of the grammar's stories, long enough for a prefix to matter."""
    return [row[: 12 + i % 5] for i, row in enumerate(conversations(fitted_target)[-8:])]


def answered(server: Server, prompts: list[list[int]], *, flushed: bool = True) -> list[Generation]:
    answers = []
    for prompt in prompts:
        if flushed:
            server.flush_cache()
        answers.append(server.generate(prompt, TOKENS))
    return answers


def counts(answers: list[Generation]) -> list[tuple[list[int], int, int]]:
    return [(each.tokens, each.verify_rounds, each.right_drafts) for each in answers]


# K13: what was asked for is what runs


def test_flags_that_sglang_changes_are_named(
    servers: dict[str, Server], fitted_target: Path, fitted_draft: Path, plain: Server, prompts: list[list[int]]
) -> None:
    server = servers["misasked"]
    failed = {check.numbers["flag"]: check for check in server.contract if check.verdict is Outcome.FAIL and "flag" in check.numbers}
    assert {flag: (check.numbers["asked"], check.numbers["got"]) for flag, check in failed.items()} == {
        "speculative_num_draft_tokens": (16, 2),
        "disable_overlap_schedule": (False, True),
    }
    assert {check.kind for check in failed.values()} == {"launch-flags"}
    # The algorithm is resolved as asked: the server starts, answers rightly, and accepts nothing.
    answers = answered(server, prompts)
    assert [each.tokens for each in answers] == [each.tokens for each in answered(plain, prompts)]
    assert sum(each.right_drafts for each in answers) < 0.1 * sum(each.verify_rounds for each in answers), "but by chance"
    checks = check_running(server.info(), target=fitted_target, checkpoint=fitted_draft)
    named = {check.name: check for check in checks if check.verdict is Outcome.FAIL}
    assert set(named) == {"rule algorithm"} and named["rule algorithm"].kind == "launch-flags"


def test_a_healthy_launch_is_what_was_asked(hooked: Server, plain: Server, fitted_target: Path, fitted_draft: Path) -> None:
    for server in (hooked, plain):
        assert {check.verdict for check in server.contract} == {Outcome.PASS}, server.contract
        other = replace(server.launch, flags={**server.launch.flags, "chunked_prefill_size": 4096})
        wrong = [check for check in compare(other, server.info()) if check.verdict is Outcome.FAIL]
        assert [check.numbers["flag"] for check in wrong] == ["chunked_prefill_size"]
    checks = check_running(hooked.info(), target=fitted_target, checkpoint=fitted_draft)
    assert {check.verdict for check in checks} == {Outcome.PASS}, checks


# K14: what is cached changes no acceptance


def test_acceptance_is_the_same_cold_and_warm_and_without_a_cache(
    servers: dict[str, Server], hooked: Server, prompts: list[list[int]]
) -> None:
    cold, warm = cold_and_warm(hooked, prompts)
    check = same_when_warm(cold, warm, tolerance=0.05)
    assert check.verdict is Outcome.PASS and check.numbers["same_texts"] == len(prompts), check
    assert counts(cold) == counts(warm) and sum(each.right_drafts for each in cold) > 0
    uncached = [each for _ in range(2) for each in answered(servers["uncached"], prompts, flushed=False)]
    assert sum(each.cached_tokens for each in uncached) == 0
    assert counts(uncached) == counts(cold) * 2


def test_a_cache_that_loses_what_belongs_to_the_drafter_is_named(hooked: Server, prompts: list[list[int]], mode: Path) -> None:
    with spoiled(mode, "warm"):
        cold, warm = cold_and_warm(hooked, prompts)
    check = same_when_warm(cold, warm, tolerance=0.05)
    assert (check.verdict, check.kind) == (Outcome.WARN, "runtime-interaction"), check
    assert check.numbers["same_texts"] == len(prompts), "no text tells"
    assert check.numbers["warm"] < check.numbers["cold"]


def cold_and_warm(server: Server, prompts: list[list[int]]) -> tuple[list[Generation], list[Generation]]:
    cold = answered(server, prompts)
    answered(server, prompts, flushed=False)  # fills the cache
    return cold, answered(server, prompts, flushed=False)


@contextmanager
def spoiled(mode: Path, how: str) -> Iterator[None]:
    mode.write_text(how)
    try:
        yield
    finally:
        mode.write_text("healthy")


# K15: a measurement that says nothing


@pytest.fixture(scope="module")
def predicted(fitted_draft: Path, plain_target: PlainTarget, prompts: list[list[int]]) -> Prediction:
    drafter = load_drafter(read_checkpoint(fitted_draft), plain_target.embedding())
    texts = [greedy_text(plain_target, prompt, BOUNDARIES, max_new_tokens=TOKENS, overrun=STEPS) for prompt in prompts]
    (found,) = predict(drafter, texts, [STEPS])
    right = [sum(n * count for n, count in enumerate(prompt.histogram)) for prompt in found.per_prompt]
    return Prediction(rounds=[prompt.verify_rounds for prompt in found.per_prompt], right=right)


def measured(
    plain: Server, speculative: Server, prompts: list[list[int]], predicted: Mapping[Setting, Prediction], **more: Any
) -> Benchmark:
    config = BenchmarkConfig.model_validate(
        {"prompts": len(prompts), "output_tokens": TOKENS, "warmup_prompts": 1, "min_output_tokens": 64, "max_noise": 100, **more}
    )

    @contextmanager
    def running(setting: Setting | None) -> Iterator[Server]:
        yield speculative if setting else plain

    return benchmark_drafter(
        config,
        prompts=prompts,
        predicted=predicted,
        start=running,
        dtype="float32",
        served_tolerance=0.05,
        choice=CachedChoice(settings={config.concurrency: SETTING}),
        seed=0,
        report=Silent(),
    )


def test_a_healthy_pair_is_measured_as_predicted(plain: Server, hooked: Server, prompts: list[list[int]], predicted: Prediction) -> None:
    found = measured(plain, hooked, prompts, {SETTING: predicted})
    assert bad(found) == {}, found.checks
    assert found.point.acceptance.accept_length == pytest.approx(predicted.accept_length)


def test_more_requests_than_a_real_server_decodes_at_once_measure_nothing(plain: Server, hooked: Server, prompts: list[list[int]]) -> None:
    with pytest.raises(ProofFailed, match="4 requests at once, of at most 2") as failed:
        measured(plain, hooked, prompts, {}, concurrency=4)
    assert (failed.value.verdict.verdict, failed.value.verdict.kind) == (Outcome.INVALID, "invalid-measurement")


def test_faked_acceptance_is_named(servers: dict[str, Server], plain: Server, prompts: list[list[int]], predicted: Prediction) -> None:
    """SGLang never fakes more than its steps + 1: what gives it away is that no drafter earns it, and that the texts part."""
    found = measured(plain, servers["faked"], prompts, {SETTING: predicted})
    assert found.point.acceptance.accept_length == STEPS + 1
    assert bad(found)["served as predicted"] == (Outcome.FAIL, "launch-flags")
    assert bad(found)["lossless"] == (Outcome.FAIL, "greedy-divergence")


# K16: greedy texts that part


@pytest.mark.parametrize(
    ("how", "exact", "verdict"),
    [
        ("healthy", True, Outcome.PASS),
        ("rounded", False, Outcome.WARN),
        ("rounded", True, Outcome.FAIL),
        ("confused", False, Outcome.FAIL),
    ],
)
def test_texts_part_at_near_ties_or_clearly(
    how: str, exact: bool, verdict: Outcome, plain: Server, hooked: Server, plain_target: PlainTarget, mode: Path
) -> None:
    undecided = [[6 + (7 * i + 5 * j) % 80 for j in range(6)] for i in range(12)]  # no stories of the grammar
    with spoiled(mode, how):
        speculative = answered(hooked, undecided)
    check = lossless(plain_target, undecided, answered(plain, undecided), speculative, exact=exact)
    assert (check.verdict, check.kind) == (verdict, None if verdict is Outcome.PASS else "greedy-divergence"), check


def lossless(
    target: PlainTarget, prompts: list[list[int]], plain: list[Generation], speculative: list[Generation], *, exact: bool
) -> Check:
    texts = [Texts(prompt, one.tokens, other.tokens) for prompt, one, other in zip(prompts, plain, speculative, strict=True)]
    return check_lossless(target, texts, restless=0, exact=exact)
