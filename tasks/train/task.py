"""The Prefect task of the training."""

from __future__ import annotations

from tasks.config import TrainConfig
from tasks.products import CaptureProduct, DataProduct, TargetProduct, TrainProduct
from tasks.stage import StageRun, stage_task
from tasks.store import Store
from tasks.train import train_drafter


@stage_task("train")
def train(
    run: StageRun,
    *,
    config: TrainConfig,
    seed: int,
    data: DataProduct,
    capture: CaptureProduct,
    target: TargetProduct,
    parity_rows: int,
    store: Store,
) -> TrainProduct:
    """The drafter, and the trainer's own logits on held-out rows; loss and accuracy are curves of the run."""
    product = train_drafter(config, seed=seed, data=data, capture=capture, target=target, parity_rows=parity_rows, store=store, report=run)
    run.log(
        {
            **{f"accuracy_step{k}": step.accuracy for k, step in enumerate(product.steps)},
            **{f"right_step{k}": step.right for k, step in enumerate(product.steps)},
            **{f"positions_step{k}": step.positions for k, step in enumerate(product.steps)},
            "optimizer_steps": product.optimizer_steps,
            "train_tokens_per_second": product.train_tokens_per_second,
        }
    )
    run.headline({f"train.accuracy_step{k}": step.accuracy for k, step in enumerate(product.steps)})
    run.refer({"checkpoint": (product.folder / "checkpoint", product.sha256)})
    return product
