"""Linear layers for several tokens at once, which is what verification computes.

In float32 PyTorch's own product is MKL's. On an Intel CPU it takes one to three tokens at the speed of the memory, but is twice as slow
from four on (torch 2.14.1 on one AVX-512 core, 12 layers of SmolLM2-135M and its head: 17, 20, 33 and 49 ms for 1, 3, 4 and 8 tokens).
oneDNN with weights laid out beforehand takes 18, 23, 23 and 27 ms. On an AMD CPU MKL multiplies token by token (two EPYC cores with
AVX-512, the head alone: 9.9, 33.5, 17.0 and 17.7 ms; oneDNN 4.5, 3.9, 3.6 and 4.4 ms). So oneDNN's kernel is used, on a second copy of
the weights, from four tokens on where MKL is at home, and always elsewhere.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def _from_tokens(cpu: str) -> int:
    """The least number of tokens that oneDNN's kernel is used for, by the text of /proc/cpuinfo. No timing: both servers must agree."""
    return 4 if "GenuineIntel" in cpu else 1


FROM_TOKENS = _from_tokens(Path("/proc/cpuinfo").read_text(encoding="utf-8"))
_PACKED = "draftproof_packed"


def pack_model(_: None, runner: Any) -> None:
    """Lay out every unquantised float32 weight of a model that is loaded. Runs after `ModelRunner.init_attention_backends`."""
    from sglang.srt.layers.quantization.unquant import UnquantizedEmbeddingMethod, UnquantizedLinearMethod

    layers = [module for module in runner.model.modules() if type(getattr(module, "quant_method", None)) is UnquantizedLinearMethod]
    head = getattr(runner.model, "lm_head", None)  # the embedding itself, where the two are tied
    if type(getattr(head, "quant_method", None)) is UnquantizedEmbeddingMethod:
        layers.append(head)
    for layer in layers:
        pack(layer)


def pack(layer: torch.nn.Module) -> None:
    """Give the layer a second, laid-out copy of its weight [out, in], where that is float32."""
    if layer.weight.dtype == torch.float32 and torch.backends.mkldnn.is_available():
        setattr(layer, _PACKED, torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), FROM_TOKENS))


def apply(original: Any, method: Any, layer: torch.nn.Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
    """Around `UnquantizedLinearMethod.apply`: x [..., in] → [..., out]."""
    packed = _packed(layer, x)
    return original(method, layer, x, bias) if packed is None else _product(x, packed, bias)


def lm_head(original: Any, processor: Any, hidden_states: Tensor, head: torch.nn.Module, *args: Any, **options: Any) -> Tensor:
    """Around `LogitsProcessor._compute_lm_head`: hidden_states [T, in] → logits [T, vocabulary], by default no bias is added there."""
    packed = _packed(head, hidden_states)
    return original(processor, hidden_states, head, *args, **options) if packed is None else _product(hidden_states, packed, None)


def _packed(layer: torch.nn.Module, x: Tensor) -> Tensor | None:
    packed: Tensor | None = layer.__dict__.get(_PACKED)
    enough = packed is not None and x.dtype == torch.float32 and x.numel() >= FROM_TOKENS * x.shape[-1]
    return packed if enough else None


def _product(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, packed, bias, "none", [], "")
    return product
