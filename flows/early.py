"""What a configuration asks for against what the target is, before any work is spent on it."""

from __future__ import annotations

import json

from tasks.benchmark import Setting, settings_to_try
from tasks.capture import resolve_boundaries
from tasks.config import Config, DeployConfig
from tasks.deploy import check_launch
from tasks.products import TargetProduct
from tasks.verdict import BadInput, Check, Outcome, ProofFailed, Verdict
from tasks.wiring import rope
from tasks.wiring.families import text_config


def check_against_target(config: Config, target: TargetProduct) -> None:
    """What training and export would refuse in hours, and lengths that no server can be asked for.

    Raises BadInput: boundaries outside of the model, a draft vocabulary above the target's, lengths that do not fit, a
    RoPE that no drafter can be exported with.
    """
    resolve_boundaries(config.capture, target)
    path = target.folder / "config.json"
    rope.resolve(text_config(json.loads(path.read_text(encoding="utf-8"))), str(path))
    vocabulary = target.print.vocab_size
    if config.train.draft_vocab_size > vocabulary:
        raise BadInput(
            "train.draft_vocab_size",
            found=config.train.draft_vocab_size,
            expected=f"at most {vocabulary}, the target's vocabulary",
            do="Lower it; a quarter of the target's is usual.",
        )
    longest = config.data.prompt_tokens + config.data.answer_tokens
    if longest > config.train.tokens_per_batch:
        raise BadInput(
            "train.tokens_per_batch",
            found=config.train.tokens_per_batch,
            expected=f"at least {longest}, data.prompt_tokens + data.answer_tokens",
            do="Raise it, or shorten the conversations.",
        )
    if config.benchmark.output_tokens >= config.deploy.context_length:
        raise BadInput(
            "benchmark.output_tokens",
            found=config.benchmark.output_tokens,
            expected=f"less than deploy.context_length, {config.deploy.context_length}",
            do="Lower it, or raise deploy.context_length.",
        )
    most = max([config.benchmark.concurrency, *config.benchmark.concurrencies])
    limits = {"benchmark.prompts": config.benchmark.prompts, "deploy.max_running_requests": config.deploy.max_running_requests}
    for key, limit in limits.items():
        if most > limit:
            raise BadInput(
                key,
                found=limit,
                expected=f"at least {most}, the highest concurrency of the benchmark",
                do="Raise it, or lower benchmark.concurrency and benchmark.concurrencies.",
            )
    if not settings_to_try(config.benchmark, config.deploy):
        raise BadInput(
            "benchmark.draft_tokens",
            found=f"{config.benchmark.draft_tokens or config.deploy.draft_tokens} tokens",
            expected="more than the steps, and at most the proposals of a tree, 1 + topk + (steps - 1) * topk * topk",
            do="Mend benchmark.steps, topk and draft_tokens.",
        )


def check_launches(config: Config, target: TargetProduct) -> None:
    """Every launch that the benchmark will ask for; to be asked where the server will run.

    Raises ProofFailed for settings that the target rules out, BadInput for a GPU or an API key that is not there.
    """
    settings = settings_to_try(config.benchmark, config.deploy)
    launches = [check for setting in (None, *settings) for check in _launch(config, target, setting)]
    if config.deploy.topk == 1 and config.benchmark.topk is None:
        # A chain as it was asked for, draft tokens included: a setting would make them fit.
        launches += [check for steps in config.benchmark.steps for check in _rules(config.deploy, target, steps)]
    verdict = Verdict.of("deploy", launches, passed="")
    if verdict.verdict is Outcome.FAIL:
        raise ProofFailed(verdict)


def _launch(config: Config, target: TargetProduct, setting: Setting | None) -> list[Check]:
    """What can be told before there is a drafter."""
    return _rules(setting.deployed(config.deploy), target, setting.steps) if setting else _rules(config.deploy, target, None)


def _rules(deploy: DeployConfig, target: TargetProduct, steps: int | None) -> list[Check]:
    checks = check_launch(deploy, target=target.folder, drafter=None, steps=steps, ask_sglang=False)
    return [check for check in checks if check.name != "rule draft-path"]
