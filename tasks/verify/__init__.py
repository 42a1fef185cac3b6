"""The proof: the drafter as exported, run alone in torch, reproduces the trainer and predicts the server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.verify.results import HeldOut, Verification

if TYPE_CHECKING:
    from tasks.config import VerifyConfig
    from tasks.products import StepCounts
    from tasks.report import Report
    from tasks.wiring.target import TargetForward

__all__ = ["HeldOut", "Verification", "render", "verify_drafter"]


def verify_drafter(
    config: VerifyConfig,
    *,
    checkpoint: Path,
    target: TargetForward,
    held_out: Sequence[HeldOut],
    trainer_logits: Path | None,
    trainer_steps: Sequence[StepCounts] | None,
    prompts: Sequence[list[int]],
    max_new_tokens: int,
    steps: Sequence[int],
    report: Report,
) -> Verification:
    """Static checks, parity, accuracy and predicted acceptance of an exported checkpoint; a diagnosis where a link breaks.

    Args:
        checkpoint: folder of the drafter (SGLang's, speculators' or original EAGLE-3 form).
        target: computes greedy answers, and features where `held_out` brings none.
        held_out: conversations to measure accuracy on, those of `trainer_steps` for the two to be comparable.
        trainer_logits: folder of `<row>.safetensors` (`TrainProduct`); None = the checkpoint's golden probes, if any.
        trainer_steps: the trainer's own counts on `held_out`; None = not compared.
        prompts: token ids to decode from; empty = no acceptance is predicted.
        max_new_tokens: an answer ends here at the latest.
        steps: draft lengths to simulate.

    Raises BadInput: `device: cuda` without one; a folder that holds no readable EAGLE-3 checkpoint.
    """
    from tasks.verify.verification import verify

    return verify(
        config,
        checkpoint=checkpoint,
        target=target,
        held_out=held_out,
        trainer_logits=trainer_logits,
        trainer_steps=trainer_steps,
        prompts=prompts,
        max_new_tokens=max_new_tokens,
        steps=steps,
        report=report,
    )


def render(found: Verification) -> str:
    """A verification as markdown for a person: checks, draft steps, predicted acceptance, hypotheses."""
    from tasks.verify.rendering import render as rendered

    return rendered(found)
