"""The Prefect task of the target."""

from __future__ import annotations

from tasks.config import TargetConfig
from tasks.products import TargetProduct
from tasks.stage import StageRun, stage_task
from tasks.store import Store
from tasks.target import prepare_target


@stage_task("target", retries=2)
def target(run: StageRun, *, config: TargetConfig, store: Store) -> TargetProduct:
    """The target's folder, fingerprinted."""
    product = prepare_target(config, store=store, report=run)
    sizes = product.print
    run.pipeline_tag({"draftproof.target_sha256": product.sha256})
    run.log({"layers": sizes.num_layers, "hidden_size": sizes.hidden_size, "vocab_size": sizes.vocab_size})
    run.refer({"target": (product.folder, product.sha256)})
    return product
