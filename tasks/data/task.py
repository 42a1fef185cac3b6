"""The Prefect task of the data."""

from __future__ import annotations

import json
from collections.abc import Callable

from tasks.config import DataConfig
from tasks.data import make_data, prompts_sha256
from tasks.device import Placement
from tasks.products import DataProduct, TargetProduct
from tasks.stage import StageRun, stage_task
from tasks.store import Store
from tasks.wiring.answering import AnswerEngine, Tap


@stage_task("data")
def data(
    run: StageRun,
    *,
    config: DataConfig,
    seed: int,
    target: TargetProduct,
    open_engine: Callable[[], AnswerEngine],
    placement: Placement,
    tap: Tap | None,
    store: Store,
) -> DataProduct:
    """Conversations answered by the target; what was dropped is a metric with its reason."""
    run.pipeline_tag({"draftproof.prompts_sha256": prompts_sha256(config)})
    product = make_data(config, seed=seed, target=target, open_engine=open_engine, placement=placement, tap=tap, store=store, report=run)
    run.log(
        {
            "train": product.train,
            "held_out": product.held_out,
            "tokens": product.tokens,
            "supervised_tokens": product.supervised_tokens,
            **{f"dropped.{reason}": count for reason, count in product.dropped.items()},
        }
    )
    run.text("dropped.json", json.dumps(product.dropped, indent=1))
    run.refer({"conversations": (product.conversations, product.sha256)})
    return product
