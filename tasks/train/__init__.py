"""Features → drafter, with speculators' own model, loaders and Trainer, and the trainer's own logits on held-out rows."""

from __future__ import annotations

from tasks.config import TrainConfig
from tasks.products import CaptureProduct, DataProduct, TargetProduct, TrainProduct
from tasks.report import Report
from tasks.store import Store


def train_drafter(
    config: TrainConfig,
    *,
    seed: int,
    data: DataProduct,
    capture: CaptureProduct,
    target: TargetProduct,
    parity_rows: int,
    store: Store,
    report: Report,
) -> TrainProduct:
    """Train a drafter on the captured features, or find it in the store; an interrupted training goes on.

    Held-out accuracy and logits (of the first `parity_rows` held-out rows) come from the library's forward on the
    reloaded checkpoint, in float32.

    Raises:
        BadInput: a draft vocabulary above the target's, a GPU asked for that is not there, a conversation longer
            than a batch, features whose wiring record says something else than the product.
        ProofFailed: kind `silent-loss` where the loaders kept less than they were given.
    """
    from tasks.train.stage import run

    return run(config, seed=seed, data=data, capture=capture, target=target, parity_rows=parity_rows, store=store, report=report)
