"""RMSNorm. Run by test_inside_sglang.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from draftproof_sglang.cpu import norm
from sglang.srt.plugins import load_plugins

load_plugins()

from sglang.srt.layers.layernorm import RMSNorm  # noqa: E402


def normed(monkeypatch: pytest.MonkeyPatch, made: RMSNorm, *inputs: torch.Tensor) -> tuple[bool, bool]:
    """Whether the result is SGLang's own fallback's to the bit, and whether ours made it; the inputs must be left as they are."""
    asked = []
    monkeypatch.setattr(norm, "_usual", lambda *args, usual=norm._usual: asked.append(usual(*args)) or asked[-1])
    kept = [x.clone() for x in inputs]
    with torch.inference_mode():
        expected = RMSNorm.forward_native.__wrapped__(made, *kept)
        got = made(*inputs)  # by SGLang's own dispatch
    pairs = zip(got, expected, strict=True) if isinstance(expected, tuple) else [(got, expected)]
    assert all(torch.equal(*pair) for pair in zip(inputs, kept, strict=True))
    return all(torch.equal(*pair) for pair in pairs), bool(asked and asked[-1])


def rms_norm(**options: Any) -> RMSNorm:
    made = RMSNorm(24, eps=1e-5, **options)
    made.weight.data.normal_()
    return made


@pytest.mark.parametrize("tokens", [1, 5])
@pytest.mark.parametrize("inputs", [1, 2])
@pytest.mark.parametrize("options", [{}, {"cast_x_before_out_mul": True}, {"fp32_residual": True}])
def test_rms_norm_is_sglangs_own_to_the_bit(monkeypatch: pytest.MonkeyPatch, tokens: int, inputs: int, options: dict[str, Any]) -> None:
    assert normed(monkeypatch, rms_norm(**options), *(torch.randn(tokens, 24) for _ in range(inputs))) == (True, True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_other_norms_are_left_to_sglang(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    options = {"var_hidden_size": 16} if dtype == torch.float32 else {"weight_dtype": dtype}
    assert normed(monkeypatch, rms_norm(**options), torch.randn(3, 24, dtype=dtype)) == (True, False)
