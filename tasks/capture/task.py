"""The Prefect task of the capture."""

from __future__ import annotations

from collections.abc import Callable

from tasks.capture import capture_features
from tasks.config import CaptureConfig
from tasks.device import Placement
from tasks.products import CaptureProduct, DataProduct, TargetProduct
from tasks.stage import StageRun, stage_task
from tasks.store import Store
from tasks.wiring.extraction import Extractor, SecondPath


@stage_task("capture")
def capture(
    run: StageRun,
    *,
    config: CaptureConfig,
    data: DataProduct,
    target: TargetProduct,
    open_target: Callable[[], Extractor],
    open_reference: Callable[[], SecondPath],
    placement: Placement,
    store: Store,
) -> CaptureProduct:
    """Features on disk, some of them extracted again by a second path."""
    product = capture_features(
        config,
        data=data,
        target=target,
        open_target=open_target,
        open_reference=open_reference,
        placement=placement,
        store=store,
        report=run,
    )
    run.log({"rows": product.rows, "tokens": product.tokens, "worst_cosine": product.worst_cosine})
    run.tag({"draftproof.boundaries": str(product.boundaries)})
    run.refer({"features": (product.folder, product.sha256)})
    return product
