"""The proof: the drafter as exported, run alone in torch, reproduces the trainer and predicts the server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.verify.results import HeldOut, Served, Verification

if TYPE_CHECKING:
    from tasks.config import VerifyConfig
    from tasks.products import StepCounts
    from tasks.report import Report
    from tasks.verdict import Check
    from tasks.wiring.target import TargetForward

__all__ = ["HeldOut", "Served", "Verification", "render", "replay_served", "verify_drafter", "verify_served"]


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
    trees: Sequence[tuple[int, int, int]] = (),
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
        trees: trees to simulate beside the chains, as (steps, topk, draft_tokens).

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
        trees=trees,
        report=report,
    )


def verify_served(
    checkpoint: Path, target: TargetForward, recorded: Sequence[tuple[list[int], Path]], *, bound: float, device: str, report: Report
) -> list[Check]:
    """Link 3: what a server fed its drafter in probe requests, and what the drafter answered, against the standalone one.

    Args:
        recorded: of each probe request its prompt, and the folder of the passes that the server recorded.
        bound: largest logit difference, for logits that spread by 1 or less.

    Raises BadInput: nothing readable was recorded.
    """
    from tasks.verify.served import check_served

    return check_served(checkpoint, target, recorded, bound=bound, device=device, report=report)


def replay_served(
    checkpoint: Path,
    target: TargetForward,
    served: Sequence[Served],
    *,
    steps: int,
    topk: int = 1,
    draft_tokens: int | None = None,
    tolerance: float,
    device: str,
) -> Check:
    """Link 4 in lower precision: the acceptance that the standalone drafter has along the tokens that a server really gave.

    FAIL where the two differ by more than the share `tolerance`.
    """
    from tasks.verify.served import replay

    return replay(checkpoint, target, served, steps=steps, topk=topk, draft_tokens=draft_tokens, tolerance=tolerance, device=device)


def render(found: Verification) -> str:
    """A verification as markdown for a person: checks, draft steps, predicted acceptance, hypotheses."""
    from tasks.verify.rendering import render as rendered

    return rendered(found)
