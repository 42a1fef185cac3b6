"""Link 3 in whole servers: what is fed and answered is recorded, and a server that is wired otherwise is named."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tasks.config import DeployConfig
from tasks.deploy import start_server
from tasks.report import Silent
from tasks.verdict import Check, Outcome
from tasks.verify import verify_served
from tasks.verify.served import read_passes
from tasks.wiring.probes import read_probes
from tests.verify.drafters import BOUNDARIES
from tests.verify.fitted import retouch
from tests.verify.targets import PlainTarget

pytestmark = pytest.mark.servers
SETTINGS = DeployConfig.model_validate({"device": "cpu", "context_length": 128, "max_total_tokens": 512, "max_running_requests": 2})
STEPS = 3


def probed(target: Path, drafter: Path, folder: Path) -> list[tuple[list[int], Path]]:
    """The drafter's own probes, sent to a server; beside them a request that is none."""
    prompts = [probe.token_ids_S.tolist() for probe in read_probes(drafter) or []]
    recorded = []
    with start_server(
        SETTINGS, target=target, drafter=drafter, steps=STEPS, log=folder / "log", report=Silent(), probes=folder / "probes"
    ) as server:
        assert not [check for check in server.contract if check.verdict is not Outcome.PASS]
        server.generate(prompts[0], 4)
        assert not (folder / "probes").exists(), "ordinary traffic is not recorded"
        for number, prompt in enumerate(prompts):
            server.flush_cache()
            server.probe(prompt, 12, f"draftproof-probe-{number}")
            recorded.append((prompt, folder / "probes" / f"draftproof-probe-{number}"))
    return recorded


def judged(checkpoint: Path, target: PlainTarget, recorded: list[tuple[list[int], Path]]) -> list[Check]:
    return verify_served(checkpoint, target, recorded, bound=1e-3, device="cpu", report=Silent())


def test_a_healthy_server_feeds_and_answers_as_the_standalone_drafter(
    fitted_draft: Path, fitted_target: Path, plain_target: PlainTarget, tmp_path: Path
) -> None:
    recorded = probed(fitted_target, fitted_draft, tmp_path)
    checks = judged(fitted_draft, plain_target, recorded)
    assert [check.message for check in checks if check.verdict is not Outcome.PASS] == []
    assert {check.name.partition(",")[0] for check in checks} == {"served features", "served logits", "served draft tokens"}
    features = checks[0].numbers
    assert features["nearest"] == BOUNDARIES and features["max_difference"] < 1e-4 and features["margin"] > 0.01
    assert all(check.numbers["followed"] >= STEPS - 1 for check in checks if check.name.startswith("served draft tokens"))
    passes = read_passes(recorded[0][1])
    assert len(passes[0].input_ids_T) == len(recorded[0][0]) and passes[0].positions_T[0] == 0
    # More is computed by the pass after a round than by one of a draft step.
    assert {len(each.input_ids_T) for each in passes[1:]} == {1, STEPS + 1}


def _d2t_as_ids(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    shifted = weights["d2t"].clone()
    shifted[1:] += 1  # still ascending, and one target id off
    retouch(folder, {"d2t": shifted})


@pytest.mark.parametrize(
    ("tamper", "kind", "hypothesis"),
    [
        (
            lambda folder: retouch(folder, eagle_config={"eagle_aux_hidden_state_layer_ids": list(BOUNDARIES)}),
            "layer-boundaries",
            "boundaries one too high",
        ),
        (lambda folder: retouch(folder, rope_parameters={"rope_type": "default", "rope_theta": 1e6}), "rope", "RoPE theta 1e+06"),
        (_d2t_as_ids, "vocab-map", None),
    ],
    ids=["the next layers", "another theta", "another map"],
)
def test_a_server_that_is_wired_otherwise_is_named(
    tamper: Callable[[Path], None],
    kind: str,
    hypothesis: str | None,
    fitted_draft: Path,
    fitted_target: Path,
    plain_target: PlainTarget,
    tmp_path: Path,
) -> None:
    """The server gets a tampered copy; judged is what it served, against the drafter as it was trained."""
    served = tmp_path / "served"
    shutil.copytree(fitted_draft, served)
    tamper(served)
    torch.manual_seed(0)
    checks = judged(fitted_draft, plain_target, probed(fitted_target, served, tmp_path))
    failed = [check for check in checks if check.verdict is Outcome.FAIL]
    assert failed and failed[0].kind == kind, checks
    if hypothesis:
        assert hypothesis in f"{failed[0].numbers.get('hypothesis')} {failed[0].message}", failed[0]
