"""A server that somebody else started, by its answers' tokens and counts alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tasks.report import Silent
from tasks.verdict import Check, Outcome
from tasks.verify import Served, Texts, check_lossless, check_running
from tasks.verify.acceptance import predict
from tasks.verify.checkpoint import read_checkpoint
from tasks.verify.drafter import Drafter, load_drafter
from tasks.verify.greedy import greedy_text
from tasks.verify.hypotheses import name_boundaries
from tasks.verify.lossless import check_own_tokens
from tasks.verify.ways import fed_lists
from tasks.wiring.record import Rope
from tests.verify.drafters import BOUNDARIES
from tests.verify.fitted import PROMPT, conversations
from tests.verify.targets import PlainTarget

STEPS = 2


class Undecided(PlainTarget):
    """Says the same everywhere."""

    def __init__(self, logits_V: torch.Tensor) -> None:
        self._logits_V = logits_V

    def start(self) -> None:
        return None

    def extend(self, *_: object, **__: object) -> tuple[torch.Tensor, torch.Tensor]:
        return self._logits_V[None], torch.empty(0)


def answers(
    draft: Path,
    target: PlainTarget,
    boundaries: list[int] = BOUNDARIES,
    change: Callable[[Drafter], Drafter] = lambda drafter: drafter,
    prompts: int = 5,
) -> list[Served]:
    """What a float32 server would answer and count that feeds `boundaries`."""
    drafter = change(load_drafter(read_checkpoint(draft), target.embedding()))
    asked = [row[: PROMPT + i % 5] for i, row in enumerate(conversations(Path(target.model.name_or_path))[-prompts:])]
    texts = [greedy_text(target, prompt, boundaries, max_new_tokens=24, overrun=STEPS) for prompt in asked]
    counts = predict(drafter, texts, [STEPS])[0].per_prompt
    served = []
    for prompt, text, counted in zip(asked, texts, counts, strict=True):
        right = sum(number * rounds for number, rounds in enumerate(counted.histogram))
        served.append(Served(prompt, text.tokens[len(prompt) :][: text.output_tokens], counted.verify_rounds, right))
    return served


def judged(draft: Path, target: PlainTarget, served: list[Served], exact: bool = True) -> Check:
    checks = check_running(
        draft, target, served, steps=STEPS, topk=1, draft_tokens=STEPS + 1, exact=exact, tolerance=0.05, device="cpu", report=Silent()
    )
    assert all(check.verdict is Outcome.PASS for check in checks[:-1]), checks
    return checks[-1]


@pytest.mark.parametrize("exact", [True, False])
def test_a_drafter_that_is_served_as_it_was_trained_passes(fitted_draft: Path, plain_target: PlainTarget, exact: bool) -> None:
    check = judged(fitted_draft, plain_target, answers(fitted_draft, plain_target), exact)
    assert (check.name, check.verdict) == ("served acceptance", Outcome.PASS), check
    assert check.numbers["served"] == check.numbers["predicted"] > 1.2 and check.numbers["equal_by_count"] == 5


@pytest.mark.parametrize(
    ("boundaries", "change", "kind", "hypothesis"),
    [
        ([2, 4, 5], lambda drafter: drafter, "layer-boundaries", "boundaries one too high"),
        (BOUNDARIES, lambda drafter: drafter.changed(rope=Rope(theta=1e6, head_dim=16)), "rope", "RoPE theta 1e+06"),
        (
            BOUNDARIES,
            lambda drafter: drafter.changed(norm_output=not drafter.architecture.norm_output),
            "architecture-flags",
            "norm_output",
        ),
        (BOUNDARIES, lambda drafter: drafter.changed(norm_before_residual=True), "architecture-flags", "norm_before_residual"),
    ],
    ids=["the next layers", "another theta", "another flag", "another residual"],
)
def test_a_mis_wiring_is_named_from_the_counts(
    boundaries: list[int],
    change: Callable[[Drafter], Drafter],
    kind: str,
    hypothesis: str,
    fitted_draft: Path,
    plain_target: PlainTarget,
) -> None:
    # Of fewer prompts, on one CPU or another, a slight fault moves no count.
    check = judged(fitted_draft, plain_target, answers(fitted_draft, plain_target, boundaries, change, prompts=20))
    assert (check.verdict, check.kind) == (Outcome.FAIL, kind), check
    named = [way["name"] for way in check.numbers["fit"]]
    assert any(hypothesis in name for name in named) and len(named) <= 3, check
    assert all(way["equal_by_count"] == check.numbers["deciding"] > 2 for way in check.numbers["fit"])


def test_figures_that_no_mis_wiring_gives_are_said_to_be_such(fitted_draft: Path, plain_target: PlainTarget) -> None:
    served = answers(fitted_draft, plain_target)
    faked = [Served(one.prompt, one.answer, 8, 16) for one in served]
    check = judged(fitted_draft, plain_target, faked)
    assert (check.verdict, check.kind) == (Outcome.FAIL, "launch-flags") and "SGLANG_SIMULATE_ACC_LEN" in check.message
    idle = [Served(one.prompt, one.answer, 0, 0) for one in served]
    check = judged(fitted_draft, plain_target, idle)
    assert (check.verdict, check.kind) == (Outcome.FAIL, "launch-flags") and "does not speculate" in check.message
    nothing = [Served(one.prompt, one.answer, len(one.answer) - 1, 0) for one in served]
    check = judged(fitted_draft, plain_target, nothing)
    assert (check.verdict, check.kind) == (Outcome.FAIL, "tensors") and "not loaded" in str(check.numbers["hypothesis"])


def test_the_story_is_among_the_known_ones() -> None:
    """A drafter trained on [0, 3, 31], served [3, 31, 59] on a target of 61 layers."""
    assert [3, 31, 59] in fed_lists([0, 3, 31], 61)
    assert name_boundaries([3, 31, 59], [0, 3, 31], 61) == "trained on the embedding and all but the last"


def test_texts_that_differ_are_judged_by_the_gap(fitted_draft: Path, plain_target: PlainTarget) -> None:
    served = answers(fitted_draft, plain_target)

    def check(change: Callable[[list[int]], list[int]], exact: bool) -> Check:
        texts = [Texts(one.prompt, one.answer, change(one.answer)) for one in served]
        return check_lossless(plain_target, texts, restless=0, exact=exact)

    healthy = check(lambda answer: answer, True)
    assert healthy.verdict is Outcome.PASS and healthy.numbers["identical"] == 5
    clear = check(lambda answer: [*answer[:3], 7, *answer[4:]], False)
    assert (clear.verdict, clear.kind) == (Outcome.FAIL, "greedy-divergence") and min(clear.numbers["gaps"]) > 0
    assert check(lambda answer: answer[:-1], False).verdict is Outcome.FAIL


def test_a_near_tie_is_told_and_fails_in_float32_alone() -> None:
    """A target that finds tokens 3 and 4 as good as equal."""
    target = Undecided(torch.tensor([0.0, 0.0, 1.0, 9.9, 10.0, 5.0]))
    texts = [Texts([1], [4, 4], [3, 4]), Texts([1], [4], [4])]
    near = check_lossless(target, texts, restless=1, exact=False)
    assert (near.verdict, near.kind) == (Outcome.WARN, "greedy-divergence") and "differs from itself on 1" in near.message
    assert check_lossless(target, texts, restless=1, exact=True).verdict is Outcome.FAIL
    far = check_lossless(target, [Texts([1], [4], [5])], restless=1, exact=False)
    assert far.verdict is Outcome.FAIL and far.numbers["gaps"] == [5.0]


def test_tokens_that_are_not_the_targets_own_are_found(fitted_draft: Path, plain_target: PlainTarget) -> None:
    """As with SGLANG_SIMULATE_ACC_LEN, whose rounds agree with the tokens that it gives."""
    served = answers(fitted_draft, plain_target)
    assert check_own_tokens(plain_target, served).verdict is Outcome.PASS
    first = served[0]
    faked = Served(first.prompt, [*first.answer[:5], (first.answer[5] + 1) % 90 + 3, *first.answer[6:]], first.verify_rounds, 16)
    check = check_own_tokens(plain_target, [faked, *served[1:]])
    assert (check.verdict, check.kind) == (Outcome.FAIL, "greedy-divergence") and check.numbers["wrong"] >= 1
