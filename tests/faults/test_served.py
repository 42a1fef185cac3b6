"""Mutants as served: SGLang gets the tampered copy, its scheduler and draft worker run in one process, and what they fed and
answered is judged against the drafter as it was trained. Whole servers are in tests/servers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tasks.config import DeployConfig
from tasks.deploy.contract import compare_flags
from tasks.deploy.launch import Launch, plan
from tasks.deploy.refusals import refusals
from tasks.report import Silent
from tasks.verdict import Check, Outcome
from tasks.verify import verify_served
from tasks.wiring.probes import read_probes
from tests.faults.conftest import Score
from tests.faults.engine import Engine
from tests.faults.mutants import Tamper, dropped, ids, settings, weights
from tests.faults.test_tampered import planted
from tests.verify.drafters import BOUNDARIES, VOCAB
from tests.verify.targets import PlainTarget

STEPS, TOKENS = 3, 12
low, middle, high = (boundary - 1 for boundary in BOUNDARIES)
Serve = Callable[..., list[Check]]


@dataclass(frozen=True)
class Mutant:
    name: str
    kind: str
    tamper: Tamper
    target: Tamper
    config: dict[str, Any]
    """What the launch asks for besides."""


def _untouched(_: Path) -> None:
    return None


def _mutant(kind: str, name: str, tamper: Tamper = _untouched, target: Tamper = _untouched, **config: Any) -> Mutant:
    return Mutant(name, kind, tamper, target, config)


def _one_off(w: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Still ascending and in range, and one target id off from the second on."""
    return {"d2t": torch.cat([w["d2t"][:1], w["d2t"][1:] + 1])}


def _with_t2d(w: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The map's other half, which SGLang does not read."""
    return {"t2d": torch.zeros(VOCAB, dtype=torch.bool).index_fill_(0, w["d2t"] + torch.arange(len(w["d2t"])), True)}


def _quantised(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": {"quant_method": "awq"}}))


MUTANTS = [
    _mutant("layer-boundaries", "every id one too high", ids(low + 1, middle + 1, high + 1)),
    _mutant("layer-boundaries", "every id one too low", ids(low - 1, middle - 1, high - 1)),
    _mutant("layer-boundaries", "the last id one too high", ids(low, middle, high + 1)),
    _mutant("layer-boundaries", "two features swapped", planted("two features swapped")),
    _mutant("architecture-flags", "norm_output on", settings(norm_output=True)),
    _mutant("tensors", "no head", dropped("lm_head.weight")),
    _mutant("tensors", "no hidden norm", dropped("layers.0.hidden_norm.weight")),
    _mutant("tensors", "shuffled weights", planted("shuffled weights")),
    _mutant("vocab-map", "d2t one off", weights(_one_off)),
    _mutant("vocab-map", "d2t is all zero", weights(lambda w: {"d2t": w["d2t"] * 0})),
    _mutant("rope", "theta 1e6 for 1e4", planted("theta 1e6 for 1e4")),
    _mutant("dtype-quantisation", "a quantised target, nothing said of the drafter", target=_quantised),
    _mutant("context-length", "positions for 20 tokens", planted("positions for 20 tokens")),
]
CONTROLS = [
    _mutant("healthy", "as trained"),
    _mutant("healthy", "t2d stored too", weights(_with_t2d)),
    _mutant("healthy", "no radix cache", disable_radix_cache=True),
    _mutant("healthy", "chunked prompts", chunked_prefill_size=64),
]


def launched(target: Path, drafter: Path, probes: Path | None = None, **config: Any) -> Launch:
    asked = {"device": "cpu", "threads": 1, "context_length": 128, "max_total_tokens": 512, "max_running_requests": 2, **config}
    return plan(DeployConfig.model_validate(asked), target=target, drafter=drafter, steps=STEPS, port=29000, probes=probes)


@pytest.fixture(scope="module")
def engine(fitted_target: Path, fitted_draft: Path) -> Iterator[Engine]:
    with Engine(launched(fitted_target, fitted_draft)) as running:
        yield running


@pytest.fixture
def serve(engine: Engine, fitted_draft: Path, fitted_target: Path, plain_target: PlainTarget, tmp_path: Path) -> Serve:
    """All that the pipeline checks of a launch, in its order; refused ones are not started."""

    def judged(mutant: Mutant) -> list[Check]:
        target, served, probes = (tmp_path / name for name in ("target", "served", "probes"))
        shutil.copytree(fitted_target, target)
        shutil.copytree(fitted_draft, served)
        mutant.target(target)
        mutant.tamper(served)
        launch = launched(target, served, probes, **mutant.config)
        refused = [check for check in refusals(launch.flags) if check.verdict is Outcome.FAIL]
        if refused:
            return refused
        prompts = [probe.token_ids_S.tolist() for probe in read_probes(fitted_draft) or []]
        found = engine.serve(launch, prompts, TOKENS)
        assert all(len(answer["tokens"]) >= TOKENS and answer["verify_rounds"] for answer in found["answers"])
        recorded = [(prompt, probes / f"draftproof-probe-{i}") for i, prompt in enumerate(prompts)]
        linked = verify_served(fitted_draft, plain_target, recorded, bound=1e-3, device="cpu", report=Silent())
        return [*compare_flags(launch, found["resolved"]), *linked]

    return judged


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: f"{m.kind}: {m.name}")
def test_a_mutant_is_caught_and_named(mutant: Mutant, serve: Serve, score: Score) -> None:
    name = f"{mutant.kind}: {mutant.name} (served)"
    score.mutant(name, False, False, "crashed")
    failed = [check for check in serve(mutant) if check.verdict is Outcome.FAIL]
    named = bool(failed) and failed[0].kind == mutant.kind
    score.mutant(name, bool(failed), named, json.dumps([check.message for check in failed])[:200])
    assert named, failed


@pytest.mark.parametrize("control", CONTROLS, ids=lambda m: m.name)
def test_a_healthy_launch_is_not_blamed(control: Mutant, serve: Serve, score: Score) -> None:
    name = f"{control.name} (served)"
    score.healthy(name, False, "crashed")
    wrong = [check for check in serve(control) if check.verdict is not Outcome.PASS]
    score.healthy(name, not wrong, json.dumps([check.message for check in wrong])[:200])
    assert not wrong, wrong
