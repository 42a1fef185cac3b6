"""Trainer ≡ standalone: the trainer's own logits, reproduced by the standalone forward at every unrolled step.

Both forwards are fed the very same stored features, each value turned from bfloat16 into the float32 that it is, and
both compute in float32. So rounding of the features cancels, and what is left is the order of float32 sums: about
1e-5 over logits of size 10. A bound of 1e-3 is far above that and far below the smallest fault that is known, a
RoPE theta of five times the right one, which moves the logits by 3 (`facts/speculators.md`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from tasks.verdict import BadInput, Check, Outcome
from tasks.verify.drafter import Drafter
from tasks.verify.results import StepParity
from tasks.wiring.probes import Probe, make_probe, read_probes


def expected_logits(trainer_logits: Path | None, checkpoint: Path, samples: int) -> list[Probe]:
    """At most `samples` rows of the trainer's logits; without that folder the checkpoint's golden probes, if any.

    Raises BadInput for a folder that holds none.
    """
    if trainer_logits is None:
        return (read_probes(checkpoint) or [])[:samples]
    files = sorted(trainer_logits.glob("*.safetensors"), key=lambda file: (len(file.stem), file.stem))
    if not files:
        raise BadInput(str(trainer_logits), found="no logits", expected="<row>.safetensors", do="Train the drafter again.")
    return [_row(file) for file in files[:samples]]


def _row(file: Path) -> Probe:
    """One row of the trainer's logits, every index that is no padding at any step."""
    try:
        tensors = load_file(file)
        tokens, features, logits = tensors["token_ids"], tensors["features"], tensors["logits"]
        return make_probe(tokens, features, logits, tokens=len(tokens), logits_bytes=logits.nbytes)
    except (SafetensorError, OSError, KeyError, ValueError, RuntimeError) as error:
        raise BadInput(str(file), found=f"{error}", expected="token_ids, features, logits", do="Train the drafter again.") from error


@torch.inference_mode()
def compare(drafter: Drafter, probe: Probe) -> list[StepParity]:
    """One row: the largest difference of the logits, and how often the best draft token is the same, at each step.

    Raises BadInput for a row of another shape than the drafter's.
    """
    a = drafter.architecture
    found, wanted = (*probe.features_SnH.shape[1:], probe.logits_KPV.shape[2]), (a.num_features, a.hidden_size, a.draft_vocab_size)
    if found != wanted:
        raise BadInput("trainer's logits", found=f"[n, H, V] = {list(found)}", expected=f"{list(wanted)}", do="They are another drafter's.")
    results = []
    for k, final in enumerate(drafter.unroll(probe.token_ids_S[None], probe.features_SnH[None], len(probe.logits_KPV))):
        ours_PV = drafter.logits(final[0, probe.positions_P.to(final.device)])
        theirs_PV = probe.logits_KPV[k].to(ours_PV)
        results.append(
            StepParity(
                step=k,
                positions=len(ours_PV),
                max_difference=float((ours_PV - theirs_PV).abs().max()),
                argmax_equal=int((ours_PV.argmax(-1) == theirs_PV.argmax(-1)).sum()),
            )
        )
    return results


def total(rows: Sequence[Sequence[StepParity]]) -> list[StepParity]:
    """The steps of several rows together; a step that only some rows have counts those."""
    steps = max(len(row) for row in rows)
    parts = [[row[k] for row in rows if len(row) > k] for k in range(steps)]
    return [
        StepParity(
            step=k,
            positions=sum(part.positions for part in found),
            max_difference=max(part.max_difference for part in found),
            argmax_equal=sum(part.argmax_equal for part in found),
        )
        for k, found in enumerate(parts)
    ]


def judge(steps: Sequence[StepParity], bound: float) -> Check:
    """PASS when every step's largest difference is within `bound`. The kind of a FAIL is for the diagnosis to name."""
    worst = max(steps, key=lambda step: step.max_difference)
    positions = sum(step.positions for step in steps)
    numbers = {
        "max_difference": worst.max_difference,
        "bound": bound,
        "positions": positions,
        "argmax_equal": sum(step.argmax_equal for step in steps),
        "max_difference_by_step": [step.max_difference for step in steps],
    }
    if worst.max_difference <= bound:
        message = (
            f"largest logit difference {worst.max_difference:.2g} over {positions} positions and {len(steps)} steps (at most {bound:g})"
        )
        return Check(name="parity", verdict=Outcome.PASS, message=message, numbers=numbers)
    message = (
        f"The drafter's logits differ from the trainer's own by up to {worst.max_difference:.3g} at step {worst.step} "
        f"(at most {bound:g}), with {numbers['argmax_equal']} of {positions} best tokens equal."
    )
    return Check(name="parity", verdict=Outcome.FAIL, message=message, numbers=numbers)
