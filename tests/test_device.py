"""`auto` is resolved to what the machine has."""

import os
from pathlib import Path

import pytest
import torch

from tasks.device import Placement, cores, cpu_multiplies_bfloat16, place
from tasks.verdict import BadInput


def test_auto_on_a_cpu_follows_what_it_multiplies_natively(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert place() == Placement(device="cpu", dtype="bfloat16" if cpu_multiplies_bfloat16() else "float32")
    monkeypatch.setattr("tasks.device.cpu_multiplies_bfloat16", lambda: False)
    assert place().dtype == "float32"
    assert place("cpu", "bfloat16").dtype == "bfloat16"


def test_a_gpu_that_is_not_there_is_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BadInput, match="cuda"):
        place("cuda")


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "100000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({}, None),
    ],
)
def test_a_containers_quota_counts(files: dict[str, str], expected: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr("tasks.device._CGROUP", tmp_path)
    assert cores() == (expected or len(os.sched_getaffinity(0)))
