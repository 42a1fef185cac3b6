"""A finished folder, tampered with as somebody might: `verify` names what was done (issue 3, "Done when")."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tasks.verdict import Outcome
from tasks.wiring import vocabulary
from tests.faults.mutants import BARE, MUTANTS, PROBED, RECORDED, Tamper, dropped, ids, settings
from tests.faults.test_checkpoints import copied, verify
from tests.verify.drafters import BOUNDARIES
from tests.verify.fitted import fitted_drafter
from tests.verify.targets import PlainTarget

low, middle, high = (boundary - 1 for boundary in BOUNDARIES)


def planted(name: str) -> Tamper:
    return next(mutant.tamper for mutant in MUTANTS if mutant.name == name)


ONE_TOO_MANY = "feeds boundaries [1, 2, 3, 4]; the drafter was trained on [1, 3, 4]"
# What was done: the kind, and what the verdict says of it.
TAMPERED: dict[str, tuple[Tamper, str, str]] = {
    "layers +1": (ids(low + 1, middle + 1, high + 1), "layer-boundaries", "boundaries one too high"),
    "layers -1": (ids(low - 1, middle - 1, high - 1), "layer-boundaries", "boundaries one too low"),
    "another RoPE theta": (settings(rope_parameters={"rope_type": "default", "rope_theta": 5e5}), "rope", "RoPE theta 10000"),
    "d2t as ids": (planted("d2t holds ids"), "vocab-map", "d2t holds ids, not offsets"),
    "no head": (dropped("lm_head.weight"), "tensors", "1 missing: lm_head.weight"),
    "norm_output flipped": (settings(norm_output=True), "architecture-flags", "norm_output flipped"),
    "one id too many": (ids(low, low + 1, middle, high), "layer-boundaries", ONE_TOO_MANY),
    "two features swapped": (planted("two features swapped"), "layer-boundaries", "features in the order [1, 0, 2]"),
    "weights of another run": (planted("weights of another training"), "tensors", "weights of another training"),
}
# What is said without the record, where only that knows what was trained.
_WITHOUT = {
    "weights of another run": "the weights or the data are others",
    "one id too many": "asks for 4 features [0, 1, 2, 3]; fc takes 3",
}


@pytest.mark.parametrize("proof", [RECORDED, PROBED], ids=["record", "probes"])
@pytest.mark.parametrize("name", TAMPERED)
def test_it_says_what_was_done(name: str, proof: tuple[str, ...], fitted_draft: Path, plain_target: PlainTarget, tmp_path: Path) -> None:
    tamper, kind, said = TAMPERED[name]
    folder = copied(fitted_draft, tmp_path / "tampered", proof)
    tamper(folder)
    verdict = verify(folder, plain_target).verdict
    assert (verdict.verdict, verdict.kind) == (Outcome.FAIL, kind), verdict
    said = said if proof == RECORDED else _WITHOUT.get(name, said)
    assert said in f"{verdict.hypothesis} {verdict.message}", verdict


# Of a bare folder the likelihood of the target's tokens is the only judge. What is said of each there.
_BARE: dict[str, str] = {name: _WITHOUT.get(name, said) for name, (_, _, said) in TAMPERED.items() if name != "weights of another run"}


@pytest.mark.parametrize("name", _BARE)
def test_a_bare_folder_says_it_too(name: str, fitted_draft: Path, plain_target: PlainTarget, tmp_path: Path) -> None:
    tamper, kind, _ = TAMPERED[name]
    folder = copied(fitted_draft, tmp_path / "tampered", BARE)
    tamper(folder)
    verdict = verify(folder, plain_target).verdict
    assert (verdict.verdict, verdict.kind) == (Outcome.FAIL, kind), verdict
    assert _BARE[name] in f"{verdict.hypothesis} {verdict.message}", verdict


def test_a_bare_folder_whose_theta_costs_nothing_is_at_least_asked_about(
    fitted_draft: Path, plain_target: PlainTarget, tmp_path: Path
) -> None:
    folder = copied(fitted_draft, tmp_path / "tampered", BARE)
    settings(rope_parameters={"rope_type": "default", "rope_theta": 10001.0})(folder)
    verdict = verify(folder, plain_target).verdict
    assert (verdict.verdict, verdict.kind) == (Outcome.WARN, "rope"), verdict
    assert "config.json says 10001, the target's theta is 10000" in verdict.message


@pytest.fixture(scope="module")
def second_training(tmp_path_factory: pytest.TempPathFactory, fitted_target: Path) -> Path:
    """The same target, data and settings, trained again from another seed: a drafter as good, and another one."""
    return fitted_drafter(tmp_path_factory.mktemp("second"), fitted_target, seed=7)


def test_a_second_training_is_healthy_by_itself(second_training: Path, plain_target: PlainTarget) -> None:
    assert verify(second_training, plain_target).verdict.verdict is Outcome.PASS


@pytest.mark.parametrize(
    ("proof", "said"),
    [(RECORDED, "weights of another training"), (PROBED, "the weights or the data are others")],
    ids=["record", "probes"],
)
def test_weights_of_a_second_training_are_not_the_first_ones(
    proof: tuple[str, ...], said: str, fitted_draft: Path, second_training: Path, plain_target: PlainTarget, tmp_path: Path
) -> None:
    folder = copied(fitted_draft, tmp_path / "tampered", proof)
    shutil.copy(second_training / "model.safetensors", folder)
    verdict = verify(folder, plain_target).verdict
    assert (verdict.verdict, verdict.kind) == (Outcome.FAIL, "tensors"), verdict
    assert said in f"{verdict.hypothesis} {verdict.message}", verdict


def test_another_training_is_named_though_its_map_came_along(
    fitted_draft: Path, second_training: Path, plain_target: PlainTarget, tmp_path: Path
) -> None:
    folder = copied(fitted_draft, tmp_path / "tampered", RECORDED)
    weights = load_file(second_training / "model.safetensors")
    ids = vocabulary.target_ids(weights["d2t"])
    free = sorted(set(range(int(ids[-1]))) - set(ids.tolist()))
    other = torch.tensor(sorted([*ids[1:].tolist(), free[-1]]))
    save_file({**weights, "d2t": vocabulary.offsets(other)}, folder / "model.safetensors")
    verdict = verify(folder, plain_target).verdict
    assert (verdict.kind, verdict.hypothesis) == ("tensors", "weights of another training"), verdict
    assert [check.kind for check in verdict.checks if check.name == "vocabulary map"] == ["vocab-map"]


def test_without_record_and_probes_a_good_drafter_is_a_good_drafter(
    second_training: Path, plain_target: PlainTarget, tmp_path: Path
) -> None:
    """Nothing in such a folder says which training it came from; what can be told, that it is wired rightly, is told."""
    verdict = verify(copied(second_training, tmp_path / "bare", BARE), plain_target).verdict
    assert verdict.verdict is Outcome.PASS
    assert "whose training the weights are of" in next(check.message for check in verdict.checks if check.name == "diagnosis")
