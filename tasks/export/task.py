"""The Prefect task of the export."""

from __future__ import annotations

from tasks.config import ExportConfig
from tasks.export import export_drafter
from tasks.products import CaptureProduct, DrafterProduct, TargetProduct, TrainProduct
from tasks.stage import StageRun, stage_task
from tasks.store import Store


@stage_task("export")
def export(
    run: StageRun,
    *,
    config: ExportConfig,
    train: TrainProduct,
    capture: CaptureProduct,
    target: TargetProduct,
    store: Store,
) -> DrafterProduct:
    """An SGLang checkpoint that carries its own proof."""
    product = export_drafter(config, train=train, capture=capture, target=target, store=store, report=run)
    run.text("wiring.json", (product.folder / "wiring.json").read_text(encoding="utf-8"))
    run.text("config.json", (product.folder / "config.json").read_text(encoding="utf-8"))
    run.refer({"drafter": (product.folder, product.sha256)})
    return product
