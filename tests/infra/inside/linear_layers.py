"""Linear layers with packed weights. Run by test_inside_sglang.py."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from draftproof_sglang.cpu import linear
from sglang.srt.plugins import load_plugins

load_plugins()

from sglang.srt.layers.logits_processor import LogitsProcessor  # noqa: E402
from sglang.srt.layers.quantization.unquant import UnquantizedEmbeddingMethod, UnquantizedLinearMethod  # noqa: E402
from sglang.srt.model_executor.model_runner_components.weight_updater import WeightUpdater  # noqa: E402


@pytest.mark.parametrize("tokens", [1, 3, 4, 5, 40])
@pytest.mark.parametrize("biased", [False, True])
def test_linear_layers(tokens: int, biased: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = torch.nn.Linear(48, 80)
    x, bias = torch.randn(tokens, 48), layer.bias.detach() if biased else None
    method = UnquantizedLinearMethod()
    calls = []
    product = linear._product
    monkeypatch.setattr(linear, "_product", lambda *args: calls.append(1) or product(*args))
    with torch.inference_mode():
        expected = torch.nn.functional.linear(x.double(), layer.weight.double(), None if bias is None else bias.double())
        assert (method.apply(layer, x, bias) - expected).abs().max() < 1e-5
        assert not calls  # not laid out
        linear.pack(layer)
        assert (method.apply(layer, x, bias) - expected).abs().max() < 1e-5
    assert len(calls) == (tokens >= linear.FROM_TOKENS)


def test_the_head_is_laid_out_too_and_other_types_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    processor = object.__new__(LogitsProcessor)
    head, x = torch.nn.Embedding(96, 48), torch.randn(4, 48)
    linear.pack(head)
    expected = x.double() @ head.weight.double().T
    assert (processor._compute_lm_head(x, head) - expected).abs().max() < 1e-4  # would fail inside SGLang's own: it has no state
    half = torch.nn.Linear(48, 80, dtype=torch.bfloat16)
    linear.pack(half)
    assert not hasattr(half, linear._PACKED)


def test_a_model_is_laid_out_when_its_backends_are_made() -> None:
    embedding, layer = torch.nn.Embedding(96, 48), torch.nn.Linear(48, 80)
    embedding.quant_method, layer.quant_method = UnquantizedEmbeddingMethod(), UnquantizedLinearMethod()
    made = torch.nn.ModuleDict({"layer": layer, "lm_head": embedding, "other": torch.nn.Linear(48, 80)})
    made.lm_head = embedding
    linear.pack_model(None, SimpleNamespace(model=made))
    assert [hasattr(module, linear._PACKED) for module in made.values()] == [True, True, False]


def test_weights_of_a_running_server_are_not_changed() -> None:
    for name in ("update_weights_from_disk", "update_weights_from_tensor", "load_weights_from_distributed", "update_weights_from_ipc"):
        done, message = getattr(WeightUpdater, name)(object())
        assert not done
        assert "cannot be changed" in message
