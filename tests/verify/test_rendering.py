"""The report names what a person needs, healthy or not."""

from __future__ import annotations

import shutil
from pathlib import Path

from tasks.verify.rendering import render
from tasks.wiring.record import FILE as RECORD
from tests.verify.fitted import retouch
from tests.verify.targets import PlainTarget
from tests.verify.test_verification import verify


def test_a_report_shows_checks_steps_predictions_and_hypotheses(fitted_draft: Path, plain_target: PlainTarget, tmp_path: Path) -> None:
    text = render(verify(fitted_draft, plain_target))
    assert text.startswith("# PASS\n")
    assert all(title in text for title in ("## Checks", "## Draft steps", "## Predicted acceptance"))
    assert "## Hypotheses" not in text

    folder = tmp_path / "broken"
    shutil.copytree(fitted_draft, folder)
    (folder / RECORD).unlink()
    retouch(folder, rope_parameters={"rope_type": "default", "rope_theta": 1e6})
    text = render(verify(folder, plain_target))
    assert text.startswith("# FAIL · rope\n")
    assert "## Hypotheses" in text and "| RoPE theta 10000 | rope |" in text


def test_a_checkpoint_that_cannot_run_is_reported_too(fitted_draft: Path, plain_target: PlainTarget, tmp_path: Path) -> None:
    folder = tmp_path / "broken"
    shutil.copytree(fitted_draft, folder)
    retouch(folder, norm_before_fc=True, eagle_config={})
    text = render(verify(folder, plain_target))
    assert text.startswith("# FAIL · ") and "## Draft steps" not in text
