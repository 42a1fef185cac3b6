"""Export: the trained drafter as an SGLang checkpoint that carries its own proof."""

from __future__ import annotations

from tasks.config import ExportConfig
from tasks.products import CaptureProduct, DrafterProduct, TargetProduct, TrainProduct
from tasks.report import Report
from tasks.store import Store


def export_drafter(
    config: ExportConfig,
    *,
    train: TrainProduct,
    capture: CaptureProduct,
    target: TargetProduct,
    target_family: str | None = None,
    store: Store,
    report: Report,
) -> DrafterProduct:
    """Write `config.json`, `model.safetensors`, `wiring.json` and `probes.safetensors` into one folder of the store.

    Args:
        config: dtype of the weights, and the size of the probes.
        train: the checkpoint in speculators' form, and the trainer's own logits.
        capture: where the features came from; its wiring record is checked against the checkpoint.
        target: the target that the drafter will be served with.
        target_family: `model_type` of the target; null = the one of its print.

    The same inputs give the same bytes. `model.safetensors` holds no embedding: SGLang replaces a drafter's
    embedding by the target's, so a stored one would be a second truth that nobody serves.

    Raises BadInput for a target that is not supported or a product that is no such product, and ProofFailed for
    whatever SGLang would drop, ignore or misread in silence, with the kind of fault.
    """
    from tasks.export.door import export_drafter as export

    return export(
        config,
        train=train,
        capture=capture,
        target=target,
        target_family=target_family or target.print.family,
        store=store,
        report=report,
    )
