"""What the benchmark asks, and what verification predicts for it: the words of one stage in the other's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.benchmark import Prediction, Row, Setting
from tasks.data import read_workload
from tasks.device import place
from tasks.verdict import Check
from tasks.verify import Served, replay_served

if TYPE_CHECKING:
    from tasks.benchmark.task import Replay
    from tasks.config import Config
    from tasks.products import TargetProduct
    from tasks.verify import Verification
    from tasks.wiring.target import TargetForward

_LONGEST_ROUND = 8  # tokens beyond the answer that a speculative server may need room for


@dataclass(frozen=True)
class Workload:
    """Prompts as token ids; their categories, if they have any."""

    prompts: list[list[int]]
    categories: list[str] | None = None
    source: Path | None = None
    """The file that they were read from, the folder of several; None = the held-out conversations."""


def longest_prompt(config: Config) -> int:
    """Tokens of a prompt that leave room for its answer."""
    return config.deploy.context_length - config.benchmark.output_tokens - _LONGEST_ROUND


def read_files(config: Config, target: TargetProduct, count: int) -> Workload:
    """The prompts of `benchmark.workloads`. Raises BadInput."""
    files = [Path(file) for file in config.benchmark.workloads]
    found = read_workload(files, target=target, count=count, longest=longest_prompt(config))
    source = files[0] if len(files) == 1 else files[0].parent
    return Workload([prompt.tokens for prompt in found], [prompt.category for prompt in found], source)


def replayer(config: Config, drafter: Path, workload: Workload, open_target: Callable[[], TargetForward]) -> Replay:
    """What tells, in lower precision, whether a drafter is served as it was trained: its acceptance along the served tokens."""

    def replay(setting: Setting, rows: Sequence[Row]) -> Check:
        return replay_served(
            drafter,
            open_target(),
            [Served(workload.prompts[row.prompt], row.tokens, row.verify_rounds, row.right_drafts) for row in rows],
            steps=setting.steps,
            topk=setting.topk,
            draft_tokens=setting.draft_tokens,
            tolerance=config.promote.served_tolerance,
            device=place(config.verify.device, "float32").device,
        )

    return replay


def trees_of(settings: Sequence[Setting]) -> list[tuple[int, int, int]]:
    """The trees among them, as verification is asked for them."""
    return [(setting.steps, setting.topk, setting.draft_tokens) for setting in settings if setting.topk > 1]


def predictions(verified: Verification, settings: Sequence[Setting]) -> dict[Setting, Prediction]:
    """Verification's counts for those of the settings that it could simulate, in the form that the benchmark compares with."""
    found = {
        Setting(steps=prediction.steps, topk=prediction.topk, draft_tokens=prediction.draft_tokens or 0): Prediction(
            rounds=[prompt.verify_rounds for prompt in prediction.per_prompt],
            right=[sum(right * rounds for right, rounds in enumerate(prompt.histogram)) for prompt in prediction.per_prompt],
        )
        for prediction in verified.predictions
    }
    return {setting: found[setting] for setting in settings if setting in found}
