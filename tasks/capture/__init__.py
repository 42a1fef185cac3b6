"""Features of every conversation: those kept while it was answered, or computed anew, checked by a second path."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tasks.config import CaptureConfig
from tasks.device import Placement
from tasks.products import CaptureProduct, DataProduct, TargetProduct
from tasks.report import Report
from tasks.store import Store

if TYPE_CHECKING:
    from tasks.capture.files import FileTap
    from tasks.wiring.extraction import Extractor, SecondPath


def resolve_boundaries(config: CaptureConfig, target: TargetProduct) -> list[int]:
    """The configured boundaries, or the default ones. Raises BadInput for boundaries that cannot be trained and served."""
    from tasks.wiring.boundaries import check_boundaries, default_boundaries

    layers = target.print.num_layers
    return check_boundaries(default_boundaries(layers) if config.boundaries is None else config.boundaries, layers)


def open_tap(config: CaptureConfig, target: TargetProduct) -> FileTap:
    """What `make_data` hands features to while it answers. Raises BadInput as `resolve_boundaries`."""
    from tasks.capture.files import FileTap

    return FileTap([*resolve_boundaries(config, target), target.print.num_layers])


def capture_features(
    config: CaptureConfig,
    *,
    data: DataProduct,
    target: TargetProduct,
    open_target: Callable[[], Extractor],
    open_reference: Callable[[], SecondPath],
    placement: Placement,
    store: Store,
    report: Report,
) -> CaptureProduct:
    """`hidden_states/hs_<row>.safetensors` of every conversation, `manifest.json` and `wiring.json`.

    Features that were kept while answering (`features/` of the data's folder, same boundaries) are linked; the rest is
    computed by `open_target()`, which is called only then. `open_reference()` extracts `check_samples` of them again.
    Raises ProofFailed (kinds `features`, `teacher-targets`) and MachineTrouble (too little disk).
    """
    from tasks.capture.run import capture

    return capture(
        config,
        data=data,
        target=target,
        open_target=open_target,
        open_reference=open_reference,
        placement=placement,
        store=store,
        report=report,
    )
