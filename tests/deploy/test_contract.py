"""The launch contract: the command, the environment, what is refused, and asked against resolved."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tasks.config import DeployConfig
from tasks.deploy.contract import compare, compare_flags, differing
from tasks.deploy.launch import Launch, plan
from tasks.deploy.preflight import preflight
from tasks.deploy.refusals import refusals
from tasks.verdict import BadInput, Outcome

RESOLVED = Path(__file__).parent / "resolved.json"
TARGET: dict[str, Any] = {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 4096}
DRAFTER: dict[str, Any] = {"architectures": ["LlamaForCausalLMEagle3"], "max_position_embeddings": 2048, "draft_vocab_size": 40}

PAGED_TREE = {"topk": 2, "draft_tokens": 4, "page_size": 16, "attention_backend": "torch_native"}


def models(folder: Path, target: dict[str, Any] | None = None, drafter: dict[str, Any] | None = None) -> tuple[Path, Path]:
    """A target and a drafter folder that hold a config each, with changes; a key changed to None is taken out."""
    made = []
    for name, base, changes in (("target", TARGET, target), ("drafter", DRAFTER, drafter)):
        path = folder / name
        path.mkdir(exist_ok=True)
        config = {k: v for k, v in {**base, **(changes or {})}.items() if v is not None}
        (path / "config.json").write_text(json.dumps(config))
        made.append(path)
    return made[0], made[1]


def launch(folder: Path, steps: int | None = 3, **config: Any) -> Launch:
    target, drafter = models(folder)
    settings = DeployConfig.model_validate({"device": "cpu", **config})
    return plan(settings, target=target, drafter=None if steps is None else drafter, steps=steps, port=29000)


def value(command: list[str], option: str) -> str | None:
    return command[command.index(option) + 1] if option in command else None


def test_every_flag_of_the_pair_is_explicit_and_the_rest_is_the_same(tmp_path: Path) -> None:
    plain, speculative = launch(tmp_path, None), launch(tmp_path, 3)
    assert plain.flags.keys() == speculative.flags.keys()
    different = {k for k in plain.flags if plain.flags[k] != speculative.flags[k]}
    assert all(name.startswith("speculative_") for name in different)
    command = speculative.command()
    assert command[:2] == [sys.executable, "-m"]
    for option, expected in {
        "--host": "127.0.0.1",
        "--port": "29000",
        "--attention-backend": "cpu_sdpa",
        "--max-running-requests": "4",
        "--load-format": "safetensors",
        "--speculative-algorithm": "EAGLE3",
        "--speculative-num-steps": "3",
        "--speculative-eagle-topk": "1",
        "--speculative-num-draft-tokens": "4",
        "--speculative-accept-threshold-single": "1.0",
        "--weight-version": speculative.identity,
    }.items():
        assert value(command, option) == expected, option
    assert "--disable-overlap-schedule" in plain.command()
    assert not any("speculative-num" in word or "algorithm" in word for word in plain.command())
    assert plain.identity != speculative.identity


def test_the_environment_is_ours_and_shows_no_secret(tmp_path: Path) -> None:
    inherited = {
        "PATH": "/bin",
        "SGLANG_SIMULATE_ACC_LEN": "4",
        "SGL_FORCE_SHUTDOWN": "1",
        "OMP_NUM_THREADS": "64",
        "PYTHONPATH": "/x",
        "WORLD_SIZE": "8",
        "TRITON_INTERPRET": "1",
        "SYNC_TOKEN_IDS_ACROSS_TP": "1",
        "API_KEY": "secret",
    }
    made = launch(tmp_path, threads=2)
    environment = made.full_environment(inherited)
    assert not environment.keys() & (inherited.keys() - {"PATH", "OMP_NUM_THREADS", "API_KEY"})
    assert environment["PATH"] == "/bin" and environment["OMP_NUM_THREADS"] == "2"
    assert environment["SGLANG_PLATFORM"] == "draftproof_cpu" and environment["TORCHDYNAMO_DISABLE"] == "1"
    assert "secret" not in json.dumps(made.record())


def test_a_digest_is_of_what_is_computed_not_of_the_address(tmp_path: Path) -> None:
    one = launch(tmp_path)
    assert one.digest() == launch(tmp_path).digest()
    assert one.digest() != launch(tmp_path, steps=2).digest() != launch(tmp_path, steps=2, threads=1).digest()


@pytest.mark.parametrize(
    ("rule", "kind", "changes", "words"),
    [
        ("algorithm", "launch-flags", {"algorithm": "EAGLE"}, "accepts nothing"),
        ("chain-draft-tokens", "launch-flags", {"steps": 1, "draft_tokens": 16}, "steps 1 and topk 1 with 16 draft tokens.*2 draft tokens"),
        ("tree-fills-draft-tokens", "launch-flags", {"steps": 2, "topk": 2, "draft_tokens": 12}, "12 draft tokens.*has 7 nodes"),
        ("tree-with-pages", "launch-flags", PAGED_TREE, r"topk 2\) with page_size 16 on torch_native"),
        ("cpu-backend", "launch-flags", {"page_size": 16}, "page_size 16 on cpu_sdpa"),
        ("cpu-backend", "launch-flags", {"draft_window": 64}, "draft window of 64 on cpu_sdpa"),
        ("pool-holds-a-request", "launch-flags", {"max_total_tokens": 1000}, "holds no request of context_length 2048"),
        ("pool-holds-a-request", "launch-flags", {"page_size": 3, "attention_backend": "triton"}, "no multiple of page_size 3"),
        ("context-within-drafter", "context-length", {"context_length": 4096}, "beyond the drafter's 2048 positions"),
        ("context-within-target", "context-length", {"context_length": 8192, "steps": None}, "beyond the target's 4096 positions"),
    ],
)
def test_a_setting_that_sglang_would_change_is_refused(tmp_path: Path, rule: str, kind: str, changes: dict[str, Any], words: str) -> None:
    _refused_by(refusals(launch(tmp_path, **changes).flags), rule, kind, words)


@pytest.mark.parametrize(
    ("rule", "kind", "which", "changes", "words"),
    [
        ("drafter-architecture", "architecture-flags", "drafter", {"architectures": ["Eagle3DeepseekV2ForCausalLM"]}, "Eagle3DeepseekV2"),
        ("draft-vocabulary", "vocab-map", "drafter", {"draft_vocab_size": None}, "no draft_vocab_size"),
        ("context-within-drafter", "context-length", "drafter", {"max_position_embeddings": 64}, "64 positions"),
        ("draft-quantisation", "dtype-quantisation", "target", {"quantization_config": {"quant_method": "awq"}}, r"quantised \(awq\)"),
    ],
)
def test_a_model_that_does_not_go_with_the_launch_is_refused(
    tmp_path: Path, rule: str, kind: str, which: str, changes: dict[str, Any], words: str
) -> None:
    made = launch(tmp_path)
    models(tmp_path, **{which: changes})
    _refused_by(refusals(made.flags), rule, kind, words)


@pytest.mark.parametrize(
    ("flag", "to", "rule"),
    [
        ("speculative_draft_model_path", None, "draft-path"),
        ("speculative_algorithm", None, "algorithm"),
        ("speculative_num_steps", None, "steps-explicit"),
    ],
)
def test_half_a_speculation_is_refused(tmp_path: Path, flag: str, to: object, rule: str) -> None:
    _refused_by(refusals({**launch(tmp_path).flags, flag: to}), rule, "launch-flags", "")


def _refused_by(checks: list[Any], rule: str, kind: str, words: str) -> None:
    import re

    failed = {c.name: c for c in checks if c.verdict is Outcome.FAIL}
    assert set(failed) == {f"rule {rule}"}
    check = failed[f"rule {rule}"]
    assert check.kind == kind and re.search(words, check.message) and f"rule {rule}" in check.message


@pytest.mark.parametrize(
    "changes",
    [{}, {"steps": None}, {"steps": 1}, {"topk": 2, "draft_tokens": 7, "steps": 2}, {"page_size": 16, "attention_backend": "triton"}],
)
def test_healthy_launches_are_not_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    checks = refusals(launch(tmp_path, **changes).flags)
    assert {c.verdict for c in checks} == {Outcome.PASS}, checks


def test_a_quantised_target_with_its_drafter_spoken_for_is_not_refused(tmp_path: Path) -> None:
    made = launch(tmp_path, draft_quantisation="unquant")
    models(tmp_path, target={"quantization_config": {"quant_method": "awq"}})
    assert {c.verdict for c in refusals(made.flags)} == {Outcome.PASS}


def test_a_folder_without_a_model_and_an_unserved_dtype_are_bad_input(tmp_path: Path) -> None:
    flags = launch(tmp_path).flags
    with pytest.raises(BadInput, match=r"config\.json"):
        refusals({**flags, "model_path": str(tmp_path / "nothing")})
    with pytest.raises(BadInput, match=r"deploy\.draft_dtype"):
        launch(tmp_path, draft_dtype="bfloat16")


@pytest.fixture
def recorded() -> tuple[Launch, dict[str, Any]]:
    """A speculative launch, and what a real server reported for it."""
    stored = json.loads(RESOLVED.read_text())
    return Launch(python="python", flags=stored["flags"], environment={}, identity=stored["identity"]), stored["info"]


def test_a_real_servers_account_matches_what_was_asked(recorded: tuple[Launch, dict[str, Any]]) -> None:
    asked, info = recorded
    checks = compare(asked, info)
    assert [c.verdict for c in checks] == [Outcome.PASS, Outcome.PASS], checks
    assert differing(info, info) == {}


@pytest.mark.parametrize(
    ("flag", "got"),
    [
        ("speculative_num_draft_tokens", 2),
        ("max_running_requests", 48),
        ("attention_backend", "torch_native"),
        ("disable_radix_cache", True),
        ("disable_radix_cache", 0),
        ("speculative_token_map", "/map"),
        ("speculative_accept_threshold_acc", 0.5),
        ("weight_version", "default"),
        ("cuda_graph_config", {"decode": {"backend": "full"}, "prefill": {"backend": "disabled"}}),
    ],
)
def test_each_difference_is_named_with_both_values(recorded: tuple[Launch, dict[str, Any]], flag: str, got: object) -> None:
    asked, info = recorded
    (check,) = compare_flags(asked, {**info, flag: got})
    assert check.verdict is Outcome.FAIL and check.kind == "launch-flags"
    assert set(check.numbers) == {"flag", "asked", "got"}
    assert check.numbers["flag"].startswith(flag[:10])


def test_every_asked_flag_is_compared(recorded: tuple[Launch, dict[str, Any]]) -> None:
    asked, info = recorded
    checks = compare_flags(
        asked, {k: v for k, v in info.items() if k not in asked.flags and k not in ("weight_version", "cuda_graph_config")}
    )
    assert len(checks) == len(asked.flags) + 1 and all(c.numbers["got"] == "<not reported>" for c in checks)


def test_a_pool_that_is_smaller_than_asked_is_named(recorded: tuple[Launch, dict[str, Any]]) -> None:
    asked, info = recorded
    check = compare(asked, {**info, "max_total_num_tokens": 1000})[-1]
    assert (check.verdict, check.numbers["got"]) == (Outcome.FAIL, 1000)


def test_a_preflight_says_when_the_command_is_not_taken(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'error: unrecognized arguments: --page-size' >&2\nexit 2\n")
    python.chmod(0o755)
    checks = preflight(launch(tmp_path, python=str(python)))
    assert [c.message.splitlines()[-1] for c in checks if c.verdict is Outcome.FAIL] == ["error: unrecognized arguments: --page-size"]
