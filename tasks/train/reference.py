"""What the proof is held against: the saved checkpoint, reloaded by the library and run by the library's own forward."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from speculators.losses import resolve_loss_config
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
from speculators.models.eagle3.data import shift_batch
from speculators.models.eagle3.metrics import align_for_step
from speculators.models.metrics import compute_accuracy_single_step
from speculators.train.data import ArrowDataset, CollateFn
from speculators.utils.loading import load_model_layers

from tasks.products import StepCounts, TargetProduct
from tasks.report import Report
from tasks.train.rows import Rows, gate


def reload(checkpoint: Path, target: TargetProduct, device: str) -> Eagle3DraftModel:
    """The saved drafter, its stored weights computed with in float32, by the library's own loader.

    Its embedding is the target's: SGLang serves a drafter with that one, in the target's precision, while the
    checkpoint holds a copy rounded to bfloat16 (on a float32 target that alone moves the logits by 0.03).
    """
    config = Eagle3SpeculatorConfig.from_pretrained(checkpoint)
    config.transformer_layer_config._attn_implementation = "sdpa"
    drafter = Eagle3DraftModel.from_pretrained(checkpoint, config=config, dtype=torch.float32)
    embedding = load_model_layers(["embed_tokens.weight"], str(target.folder))["embed_tokens.weight"]
    with torch.no_grad():
        drafter.embed_tokens.weight.copy_(embedding)
    return drafter.to(device).eval()


@dataclass
class Tally:
    """Counts over the held-out rows, per unrolled step."""

    right: list[int]
    right_full: list[int]
    positions: list[int]
    outside: int = 0

    def steps(self) -> list[StepCounts]:
        """Raises ProofFailed where a count is impossible (accuracies above 1 have been reported, `faults.md` K12)."""
        wrong = [
            f"step {k}: {right} and {full} right at {positions} positions"
            for k, (right, full, positions) in enumerate(zip(self.right, self.right_full, self.positions, strict=True))
            if not (0 <= full <= positions and 0 <= right <= positions and positions == self.positions[0] > 0)
        ]
        gate("held-out counts", wrong, asked=len(self.positions))
        counts = zip(self.right, self.right_full, self.positions, strict=True)
        return [StepCounts(right=right, right_full=full, positions=positions) for right, full, positions in counts]


@torch.inference_mode()
def measure(
    drafter: Eagle3DraftModel,
    dataset: ArrowDataset,
    rows: Rows,
    *,
    target: TargetProduct,
    ttt_steps: int,
    parity_rows: int,
    folder: Path,
    report: Report,
) -> Tally:
    """Count what the drafter gets right on every held-out row, and write its logits on the first `parity_rows` into `folder`.

    `dataset` is the library's, of the held-out rows. Rows are run one by one, unpacked.
    """
    folder.mkdir(exist_ok=True)
    # The forward wants a loss, which decides nothing here; the default, a Triton kernel, needs a GPU.
    call = {"ttt_steps": ttt_steps, "ttt_step_loss_decay": 1.0, "loss_config": resolve_loss_config("kl_div", "eager")}
    head_VH = _target_head(target).to(drafter.device)
    target_ids = torch.arange(drafter.draft_vocab_size, device=drafter.device) + (0 if drafter.d2t is None else drafter.d2t)
    in_draft = torch.zeros(len(head_VH), dtype=torch.bool, device=drafter.device).index_fill(0, target_ids, True)
    tally = Tally([0] * ttt_steps, [0] * ttt_steps, [0] * ttt_steps)
    for index, row in enumerate(rows.held_out):
        batch = _single(dataset, index, drafter)
        with _logits_of(drafter) as logits:
            drafted, _, metrics = drafter(**batch, **call)
        labels = (drafter.verifier_norm(batch["verifier_last_hidden_states"]) @ head_VH.T).argmax(-1)
        mask, right_so_far = batch["loss_mask"], batch["loss_mask"].clone()
        tally.outside += int((~in_draft[labels] & mask.bool()).sum())
        for k in range(ttt_steps):
            tally.right[k] += int(metrics[f"full_acc_{k}_sum"])
            tally.positions[k] += int(metrics[f"full_acc_{k}_total"])
            aligned = align_for_step(target_ids[drafted[k]], labels, mask, right_so_far, k)
            tally.right_full[k] += int(compute_accuracy_single_step(*aligned)[0])
        if index < parity_rows:
            _write(folder / f"{row}.safetensors", dataset[index], torch.cat(logits))
        report.progress(index + 1, len(rows.held_out), "held-out rows")
    return tally


def _single(dataset: ArrowDataset, index: int, drafter: Eagle3DraftModel) -> dict[str, torch.Tensor]:
    """One row as the library's collate function makes it, features as stored, in float32."""
    row = dataset[index]
    sizes = len(row["input_ids"]) - 1, drafter.hidden_size, len(drafter.target_layer_ids)
    batch = CollateFn(*sizes, dtype=torch.float32, preprocess=shift_batch)([row])
    return {name: value.to(drafter.device) for name, value in batch.items() if isinstance(value, torch.Tensor)}


@contextmanager
def _logits_of(drafter: Eagle3DraftModel) -> Iterator[list[torch.Tensor]]:
    """What the drafter's head gives out while open, [1, S-1, Vd] per unrolled step."""
    seen: list[torch.Tensor] = []
    hook = drafter.lm_head.register_forward_hook(lambda head, inputs, output: seen.append(output))
    try:
        yield seen
    finally:
        hook.remove()


def _write(path: Path, row: dict[str, torch.Tensor], logits_KSV: torch.Tensor) -> None:
    features = row["hidden_states"].unflatten(1, (-1, row["verifier_last_hidden_states"].shape[-1]))
    tensors = {"token_ids": row["input_ids"], "features": features, "logits": logits_KSV.cpu()}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)


def _target_head(target: TargetProduct) -> torch.Tensor:
    """The target's head over its whole vocabulary, [V, H] float32; its embedding where the two are tied."""
    layers = load_model_layers(["embed_tokens.weight", "lm_head.weight"], str(target.folder))
    head: torch.Tensor = layers.get("lm_head.weight", layers["embed_tokens.weight"])
    return head.float()
