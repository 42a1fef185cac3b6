"""What the benchmark asks, and what verification predicts for it: the words of one stage in the other's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.benchmark import Benchmark, Prediction, Setting, greedy_answers
from tasks.data import read_workload
from tasks.device import place
from tasks.report import Silent
from tasks.verdict import Check
from tasks.verify import Served, Texts, check_lossless, replay_served

if TYPE_CHECKING:
    from tasks.benchmark.task import Judge
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


def judge(config: Config, drafter: Path, workload: Workload, open_target: Callable[[], TargetForward], dtype: str) -> Judge:
    """What tells whether a drafter is served as it was trained, or else how, and whether texts part at near-ties alone.

    `dtype`: what the servers compute in.
    """

    def judged(found: Benchmark) -> list[Check]:
        target = open_target()
        pairs = greedy_answers(found)
        served = [(row, workload.prompts[row.prompt]) for row in found.last_answers]
        texts = {(p.prompt, tuple(p.tokens), tuple(s.tokens)): Texts(workload.prompts[p.prompt], p.tokens, s.tokens) for p, s in pairs}
        own = {(plain.prompt, tuple(plain.tokens)) for plain, _ in pairs}
        return [
            replay_served(
                drafter,
                target,
                [Served(prompt, row.tokens, row.verify_rounds, row.right_drafts) for row, prompt in served],
                steps=found.setting.steps,
                topk=found.setting.topk,
                draft_tokens=found.setting.draft_tokens,
                exact=dtype == "float32",
                tolerance=config.promote.served_tolerance,
                device=place(config.verify.device, "float32").device,
                report=Silent(),
            ),
            check_lossless(target, list(texts.values()), restless=len(own) - len({prompt for prompt, _ in own}), exact=False).model_copy(
                update={"name": "first differences"}
            ),
        ]

    return judged


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
