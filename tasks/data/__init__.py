"""Prompts, answered by the target: tokenised conversations, split into train and held-out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.config import DataConfig
from tasks.device import Placement
from tasks.products import DataProduct, TargetProduct
from tasks.report import Report
from tasks.store import Store
from tasks.wiring.answering import AnswerEngine, Tap

if TYPE_CHECKING:
    from tasks.data.workload import Prompt as WorkloadPrompt


def make_data(
    config: DataConfig,
    *,
    seed: int,
    target: TargetProduct,
    open_engine: Callable[[], AnswerEngine],
    placement: Placement,
    tap: Tap | None,
    store: Store,
    report: Report,
) -> DataProduct:
    """`conversations.jsonl`, split by conversation before anything else; interrupted, it goes on from its finished chunks.

    `open_engine` is called only if something has to be answered; `placement` is what it computes on (answers depend on
    rounding, so it is part of the cache key). With a `tap` the features of generated answers are kept in `features/`
    of the product's folder, for `capture_features`. Raises BadInput (a file that cannot be used, naming the line;
    nothing left after dropping) and ProofFailed (kind `loss-mask`: supervised tokens that are not the answers).
    """
    from tasks.data.make import make

    return make(config, seed=seed, target=target, open_engine=open_engine, placement=placement, tap=tap, store=store, report=report)


def prompts_sha256(config: DataConfig) -> str:
    """Of what `data.prompts` holds now. Raises BadInput for a folder without a JSONL file."""
    from tasks.data.source import Source

    return Source.of(config.prompts).sha256()


def read_workload(files: Sequence[Path], *, target: TargetProduct, count: int, longest: int) -> list[WorkloadPrompt]:
    """At most `count` prompts of a benchmark's files with their category, the categories in turn, by the target's chat template.

    A line is `{"prompt", "category"}`, `{"messages", "category"}`, or one of MT-Bench (`turns`: the first), GSM8K
    (`question`, `answer`) or HumanEval (`task_id`, `prompt`, `entry_point`); without a category the file's name is one.
    Prompts of more than `longest` tokens are left out. Raises BadInput: a file or line that cannot be used; no prompt left.
    """
    from tasks.data.workload import read

    return read(files, target=target, count=count, longest=longest)


def read_prompts(file: Path, *, target: TargetProduct, count: int, longest: int) -> list[list[int]]:
    """Token ids, by the target's chat template, of at most `count` conversations up to their last user turn.

    Prompts of more than `longest` tokens are left out. Raises BadInput: a file that cannot be used, naming the line;
    no prompt that is short enough.
    """
    from tasks.data.prompts import encode

    return encode(file, target=target, count=count, longest=longest)
