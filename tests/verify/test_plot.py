"""The page of plots holds the numbers that were measured, and needs no network."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tasks.verify.plot import plot
from tests.verify.fitted import retouch
from tests.verify.targets import PlainTarget
from tests.verify.test_verification import verify


def drawn(page: str) -> dict[str, Any]:
    """The traces by name, as plotly's own script is handed them."""
    call = re.search(r'Plotly\.newPlot\(\s*"[0-9a-f-]+",\s*', page)
    assert call, "no plot on the page"
    assert not re.search(r"<(script|link|img|iframe)\b[^>]*\b(src|href)\s*=", page), "the page wants the network"
    traces, _ = json.JSONDecoder().raw_decode(page, call.end())
    return {trace["name"]: trace for trace in traces}


def test_a_pass_shows_accuracy_and_logit_differences_by_step(fitted_draft: Path, plain_target: PlainTarget) -> None:
    found = verify(fitted_draft, plain_target)
    traces = drawn(plot(found))
    assert found.parity and found.diagnosis is None
    assert traces["draft vocabulary"]["x"] == [step.step for step in found.steps]
    assert traces["draft vocabulary"]["y"] == pytest.approx([step.accuracy.value for step in found.steps])
    assert traces["target's own token"]["y"] == pytest.approx([step.accuracy_full.value for step in found.steps])
    assert traces["trainer ≡ standalone"]["x"] == pytest.approx([step.max_difference for step in found.parity])


def test_a_fail_shows_every_hypothesis_with_the_named_one_marked(fitted_draft: Path, plain_target: PlainTarget, tmp_path: Path) -> None:
    folder = tmp_path / "broken"
    shutil.copytree(fitted_draft, folder, ignore=shutil.ignore_patterns("wiring.json"))
    retouch(folder, rope_parameters={"rope_type": "default", "rope_theta": 1e6})
    found = verify(folder, plain_target)
    page = plot(found)
    bars = drawn(page)["hypotheses"]
    assert found.diagnosis and found.diagnosis.method == "logits"
    differences = {tried.name: tried.score for tried in found.diagnosis.hypotheses}
    assert dict(zip(bars["y"], bars["x"], strict=True)) == pytest.approx(differences)
    marked = [name for name, colour in zip(bars["y"], bars["marker"]["color"], strict=True) if colour == "crimson"]
    assert marked == found.diagnosis.named == ["RoPE theta 10000"]
    assert drawn(page)["draft vocabulary"]["y"] == pytest.approx([step.accuracy.value for step in found.steps])
