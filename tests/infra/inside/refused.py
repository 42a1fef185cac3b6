"""What is not proved is refused. Run by test_inside_sglang.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from draftproof_sglang.cpu import refusals
from sglang.srt.plugins import load_plugins

load_plugins()

from sglang.srt.layers.radix_attention import AttentionType  # noqa: E402
from sglang.srt.mem_cache.memory_pool import MLATokenToKVPool  # noqa: E402
from sglang.srt.model_executor.forward_batch_info import ForwardMode  # noqa: E402
from sglang.srt.sampling.sampling_params import SamplingParams  # noqa: E402

from tests.infra.inside.engine import HEADS, SIZE, Served, batch, model, new_slots, runner  # noqa: E402


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"page_size": 16}, "pages of 16"),
        ({"kv_dtype": torch.float8_e5m2}, "KV cache in torch.float8_e5m2"),
        ({"enable_deterministic_inference": True}, "deterministic"),
        ({"enable_torch_compile": True}, "torch-compile"),
        ({"speculative_draft_window_size": 64}, "draft-window"),
        ({"layout": "hnd"}, "HND"),
        ({"pool": object.__new__(MLATokenToKVPool)}, "MLATokenToKVPool"),
        ({"layers": {"sliding_window_size": 16}}, "sliding window of 16"),
        ({"layers": {"logit_cap": 30.0}}, "cap of 30"),
        ({"layers": {"is_cross_attention": True}}, "cross attention"),
        ({"layers": {"attn_type": AttentionType.ENCODER_ONLY}}, "encoder_only"),
    ],
)
def test_refused_at_start(changes: dict[str, Any], named: str) -> None:
    layers = changes.get("layers")
    others = {name: value for name, value in changes.items() if name != "layers"}
    refusals.refuse_model(runner())
    with pytest.raises(refusals.Refused, match=named):
        refusals.refuse_model(runner(model(**layers) if layers else None, **others))


def test_sinks_are_refused_when_a_layer_is_called() -> None:
    from draftproof_sglang.cpu.backend import CpuSdpaBackend

    served = Served()
    backend = CpuSdpaBackend(served.runner)
    forward = batch(ForwardMode.DECODE, [1], [5], new_slots(served.table, [1], [4], 1))
    backend.init_forward_metadata(forward)
    one = torch.randn(1, HEADS * SIZE)
    with pytest.raises(refusals.Refused, match="sinks"):
        backend.forward(one, None, None, served.runner.model[0], forward, sinks=torch.zeros(HEADS))
    assert torch.isfinite(backend.forward(one, None, None, served.runner.model[0], forward, sinks=None)).all()


@pytest.mark.parametrize(
    ("speculative", "params", "refused"),
    [
        (True, {"temperature": 0.0}, None),
        (True, {"temperature": 0.7, "top_k": 1}, None),
        (True, {"temperature": 0.0, "sampling_seed": 3}, None),
        (True, {"temperature": 0.7}, "greedily"),
        (True, {}, "greedily"),
        (False, {"temperature": 0.7}, None),
        (False, {"temperature": 0.7, "sampling_seed": 3}, "seed"),
    ],
)
def test_sampling_that_would_be_ignored_is_refused(
    speculative: bool, params: dict[str, Any], refused: str | None, monkeypatch: Any
) -> None:
    monkeypatch.setattr(refusals, "_speculative", lambda: speculative)
    asked = SamplingParams(**params)
    asked.normalize(None)
    if refused:
        with pytest.raises(ValueError, match=refused):
            asked.verify(100)
    else:
        asked.verify(100)
