"""`auto` is resolved to what the machine has."""

import pytest
import torch

from tasks.device import Placement, cpu_multiplies_bfloat16, place
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
