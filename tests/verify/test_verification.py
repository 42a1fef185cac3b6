"""The door, on a drafter that is really fitted to a real tiny target."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from tasks.config import VerifyConfig
from tasks.products import StepCounts
from tasks.report import Silent
from tasks.verdict import BadInput, Outcome
from tasks.verify import Verification, render, verify_drafter
from tests.verify.drafters import speculators_model
from tests.verify.fitted import PROMPT, STEPS, conversations, held_out, retouch
from tests.verify.targets import PlainTarget

LIMIT = 24


def verify(folder: Path, target: PlainTarget, **changes: object) -> Verification:
    rows = conversations(Path(target.model.name_or_path))
    settings: dict[str, object] = {
        "checkpoint": folder,
        "target": target,
        "held_out": held_out(rows),
        "trainer_logits": None,
        "trainer_steps": None,
        "prompts": [row[:PROMPT] for row in rows[-6:]],
        "max_new_tokens": LIMIT,
        "steps": [1, 2, 3],
        "report": Silent(),
    }
    return verify_drafter(VerifyConfig(device="cpu"), **{**settings, **changes})  # type: ignore[arg-type]


def test_a_healthy_drafter_passes_with_every_number(fitted_draft: Path, plain_target: PlainTarget) -> None:
    found = verify(fitted_draft, plain_target)
    assert found.verdict.verdict is Outcome.PASS, found.verdict
    assert found.max_logit_difference is not None and found.max_logit_difference <= 1e-4
    assert found.device == "cpu" and found.diagnosis is None
    assert {f"verify.accuracy_step{k}" for k in range(STEPS)} | {"verify.max_logit_diff"} <= set(found.metrics)
    accuracies = [step.accuracy.value for step in found.steps]
    assert accuracies[0] > 0.4 and accuracies == sorted(accuracies, reverse=True)
    lengths = [prediction.accept_length.value for prediction in found.predictions]
    assert 1 < lengths[0] <= 2 and lengths == sorted(lengths)
    assert found.prediction(2).steps == 2
    assert Verification.model_validate_json(found.model_dump_json()).model_dump_json() == found.model_dump_json()


def test_a_tree_has_figures_of_its_own_beside_the_chains(fitted_draft: Path, plain_target: PlainTarget) -> None:
    found = verify(fitted_draft, plain_target, steps=[2], trees=[(2, 2, 4), (2, 2, 5)])
    lengths = [p.accept_length.value for p in found.predictions]
    names = ["steps2", "steps2_topk2_tokens4", "steps2_topk2_tokens5"]
    assert [found.metrics[f"verify.accept_length_{name}"] for name in names] == lengths
    assert found.prediction(2).topk == 1 and lengths[0] <= lengths[2]
    assert "topk 2, 4 tokens" in render(found) and "topk 2, 5 tokens" in render(found)


@pytest.mark.parametrize("norm_before_residual", [False, True])
def test_flags_of_the_trainers_own_form_are_judged_by_what_can_be_served(
    norm_before_residual: bool, plain_target: PlainTarget, tmp_path: Path
) -> None:
    model = speculators_model(Path(plain_target.model.name_or_path), norm_before_residual=norm_before_residual)
    model.save_pretrained(tmp_path)
    (flags,) = [check for check in verify(tmp_path, plain_target).verdict.checks if check.name == "flags"]
    assert flags.verdict is (Outcome.FAIL if norm_before_residual else Outcome.PASS), flags
    assert ("norm_before_residual is true" in flags.message) is norm_before_residual


def test_the_trainers_own_counts_are_compared(fitted_draft: Path, plain_target: PlainTarget) -> None:
    found = verify(fitted_draft, plain_target)
    counts = [StepCounts(right=step.right, positions=step.positions) for step in found.steps]
    assert verify(fitted_draft, plain_target, trainer_steps=counts).verdict.verdict is Outcome.PASS
    other = [counts[0].model_copy(update={"right": counts[0].right // 2}), *counts[1:]]
    assert verify(fitted_draft, plain_target, trainer_steps=other).verdict.kind == "teacher-targets"


def test_without_held_out_rows_the_targets_own_answers_serve(fitted_draft: Path, plain_target: PlainTarget) -> None:
    found = verify(fitted_draft, plain_target, held_out=[])
    assert found.verdict.verdict is Outcome.PASS and found.steps[0].positions > 50


def test_an_empty_folder_of_logits_is_bad_input(fitted_draft: Path, plain_target: PlainTarget, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no logits"):
        verify(fitted_draft, plain_target, trainer_logits=tmp_path)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_cuda_without_a_gpu_is_bad_input(fitted_draft: Path, plain_target: PlainTarget) -> None:
    with pytest.raises(BadInput, match="cuda"):
        verify_drafter(
            VerifyConfig(device="cuda"),
            checkpoint=fitted_draft,
            target=plain_target,
            held_out=[],
            trainer_logits=None,
            trainer_steps=None,
            prompts=[],
            max_new_tokens=1,
            steps=[1],
            report=Silent(),
        )


def test_exact_parity_and_low_accuracy_is_quality(fitted_draft: Path, plain_target: PlainTarget, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    from tests.verify.fitted import prove

    folder = tmp_path / "poor"
    shutil.copytree(fitted_draft, folder)
    head = load_file(folder / "model.safetensors")["lm_head.weight"]
    retouch(folder, {"lm_head.weight": head.roll(7, 0)})
    prove(folder, plain_target)
    found = verify(folder, plain_target)
    assert (found.verdict.verdict, found.verdict.kind) == (Outcome.WARN, "quality")


def test_a_context_that_is_too_short_is_found_before_anything_runs(fitted_draft: Path, plain_target: PlainTarget) -> None:
    assert verify(fitted_draft, plain_target, max_new_tokens=600, prompts=[], held_out=[]).verdict.kind != "context-length"
    rows = conversations(Path(plain_target.model.name_or_path))
    assert verify(fitted_draft, plain_target, max_new_tokens=600, prompts=[rows[0][:PROMPT]]).verdict.kind == "context-length"
