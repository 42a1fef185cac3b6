"""The proof: the drafter as exported, run alone in torch, reproduces the trainer and predicts the server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.verify.results import HeldOut, Served, Texts, Verification

if TYPE_CHECKING:
    from tasks.config import VerifyConfig
    from tasks.products import StepCounts
    from tasks.report import Report
    from tasks.verdict import Check
    from tasks.wiring.target import TargetForward

__all__ = [
    "HeldOut",
    "Served",
    "Texts",
    "Verification",
    "check_lossless",
    "check_running",
    "render",
    "replay_served",
    "verify_drafter",
    "verify_served",
]


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

    Raises ProofFailed (INVALID): nothing readable was recorded.
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
    exact: bool,
    tolerance: float,
    device: str,
    report: Report,
) -> Check:
    """Link 4 along the tokens that a server really gave: is as much accepted as the standalone drafter accepts there?

    Where not, every known mis-wiring is tried for the one that gives the served counts; it is named with what to do.

    Args:
        steps, topk, draft_tokens: as the server resolved them; draft_tokens None = steps + 1.
        exact: the server computes in float32, so that the counts themselves have to be equal; else the acceptances, within
            the share `tolerance`.
    """
    from tasks.verify.running import Replay, replay
    from tasks.verify.tree import Shape

    asked = Replay(Shape(steps, topk, draft_tokens or steps + 1), exact, tolerance)
    return replay(checkpoint, target, served, asked=asked, device=device, report=report)


def check_running(
    checkpoint: Path,
    target: TargetForward,
    served: Sequence[Served],
    *,
    steps: int,
    topk: int,
    draft_tokens: int,
    exact: bool,
    tolerance: float,
    device: str,
    report: Report,
) -> list[Check]:
    """A server that somebody else started: the checkpoint's static checks, the target's own tokens, and `replay_served`.

    Raises BadInput for a folder that holds no readable EAGLE-3 checkpoint.
    """
    from tasks.verify import running
    from tasks.verify.tree import Shape

    asked = running.Replay(Shape(steps, topk, draft_tokens), exact, tolerance)
    return running.check_running(checkpoint, target, served, asked=asked, device=device, report=report)


def check_lossless(target: TargetForward, texts: Sequence[Texts], *, restless: int, exact: bool) -> Check:
    """Greedy texts of a speculative server against a plain one's, with the gap of the target's logits at each first difference.

    Where two texts part at a near-tie, rounding may have chosen: WARN. FAIL where the target clearly prefers one of both
    tokens, and at any difference if `exact` (both servers compute in float32).

    Args:
        restless: texts on which the plain server differs from itself.
    """
    from tasks.verify import lossless

    found: Check = lossless.check_lossless(target, texts, restless=restless, exact=exact)
    return found


def render(found: Verification) -> str:
    """A verification as markdown for a person: checks, draft steps, predicted acceptance, hypotheses."""
    from tasks.verify.rendering import render as rendered

    return rendered(found)
