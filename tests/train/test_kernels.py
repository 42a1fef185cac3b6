"""The faster kernels give what the library's and torch's own give."""

from __future__ import annotations

import pytest
import torch
from speculators.losses.eager import kl_div_loss
from speculators.models.eagle3.attention import create_combined_mask_mod, extend_dense_mask_for_draft_tokens
from torch.nn.attention.flex_attention import create_mask

from tasks.train import kernels

LENGTH = 48
DOCUMENTS = torch.tensor([0] * 20 + [1] + [2] * 15 + [-1] * 12)


def training_mask(steps: int) -> torch.Tensor:
    """The library's, over three packed documents (one of a single token) and padding: [1, 1, S, steps * S]."""
    mask = create_mask(create_combined_mask_mod(DOCUMENTS, LENGTH), B=None, H=None, Q_LEN=LENGTH, KV_LEN=LENGTH, device="cpu")
    for _ in range(steps - 1):
        mask = extend_dense_mask_for_draft_tokens(mask, LENGTH)
    return mask


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_attention_and_its_gradients(steps: int) -> None:
    torch.manual_seed(0)
    mask = training_mask(steps)
    shapes = [(1, 6, LENGTH, 8), (1, 2, steps * LENGTH, 8), (1, 2, steps * LENGTH, 8)]
    query, key, value = (torch.randn(shape, requires_grad=True) for shape in shapes)
    weight = torch.randn(1, LENGTH, 6, 8)
    ours, _ = kernels.packed_attention(torch.nn.Identity(), query, key, value, mask, 0.3)
    repeated = (x.repeat_interleave(3, 1) for x in (key, value))
    dense = torch.nn.functional.scaled_dot_product_attention(query, *repeated, attn_mask=mask, scale=0.3).transpose(1, 2)
    torch.testing.assert_close(ours, dense)
    for got, wanted in zip(*(torch.autograd.grad((x * weight).sum(), (query, key, value)) for x in (ours, dense)), strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)


def test_blocks_are_documents_and_padding() -> None:
    assert kernels.block_sizes(training_mask(2)[0, 0]) == [20, 1, 15, 12]


@pytest.mark.parametrize(("query", "key"), [(30, 2), (5, LENGTH + 6)], ids=["across documents", "off the diagonal"])
def test_any_other_mask_is_refused(query: int, key: int) -> None:
    mask = training_mask(2)[0, 0].clone()
    mask[query, key] = True
    with pytest.raises(ValueError, match="no training mask"):
        kernels.block_sizes(mask)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kl_divergence_and_its_gradient(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    logits, targets = torch.randn(1, 100, 50).to(dtype).requires_grad_(), torch.randn(1, 100, 50).to(dtype)
    weight = torch.rand(1, 100)
    results = [fn(logits, targets) for fn in (kernels.kl_divergence, kl_div_loss)]
    torch.testing.assert_close(*results, atol=1e-5, rtol=1e-4)
    gradients = [torch.autograd.grad((result * weight).sum(), logits)[0] for result in results]
    torch.testing.assert_close(*gradients, atol=1e-4 if dtype == torch.bfloat16 else 1e-6, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5)


def test_argmax() -> None:
    torch.manual_seed(0)
    values = torch.randn(3, 130, 40).bfloat16()  # coarse enough for ties
    assert torch.equal(kernels.argmax(values, dim=-1), torch.argmax(values, dim=-1))
    assert torch.equal(kernels.argmax(values, dim=0), torch.argmax(values, dim=0))
    assert torch.equal(kernels.argmax(values), torch.argmax(values))
