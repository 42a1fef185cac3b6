"""The attention backend, chains and trees, against attention written out plainly. Run by test_inside_sglang.py."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.plugins import load_plugins

load_plugins()

from sglang.srt.model_executor.forward_batch_info import ForwardMode  # noqa: E402

from tests.infra.inside.engine import Served, batch, new_slots  # noqa: E402


def test_backend_decodes() -> None:
    from draftproof_sglang.cpu.backend import CpuSdpaBackend

    served, rows, lengths = Served(), [3, 1], [7, 19]  # the token being decoded counted in
    backend = CpuSdpaBackend(served.runner)
    for _ in range(2):  # again, one token on: nothing of the last step may be left
        forward = batch(ForwardMode.DECODE, rows, lengths, new_slots(served.table, rows, [n - 1 for n in lengths], 1))
        backend.init_forward_metadata(forward)
        out, query = served.run(backend, forward, 1)
        for i, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            expected = served.expected(query[i : i + 1], served.table[row, :length], torch.ones(1, length, dtype=torch.bool))
            assert (out[i] - expected[0]).abs().max() < 1e-6
        lengths = [length + 1 for length in lengths]


@pytest.mark.parametrize("chain", [True, False])
@pytest.mark.parametrize("mode", [ForwardMode.EXTEND, ForwardMode.TARGET_VERIFY])
def test_backend_extends_and_verifies(chain: bool, mode: ForwardMode) -> None:
    from draftproof_sglang.cpu.backend import CpuSdpaBackend

    if mode == ForwardMode.EXTEND and not chain:
        pytest.skip("trees are verified only")
    served, rows, before, new = Served(), [3, 1], [7, 19], 4
    backend = CpuSdpaBackend(served.runner)
    own = torch.ones(2, new, new, dtype=torch.bool).tril_()
    if not chain:
        own[0, 2, 1] = own[1, 3, 2] = False
    spec = SimpleNamespace(draft_token_num=new, tree_topk=1 if chain else 2, custom_mask=own.flatten())
    extend = {"extend_seq_lens": torch.tensor([new, new]), "extend_start_loc": torch.tensor([0, new])}
    more = {"spec_info": spec} if mode == ForwardMode.TARGET_VERIFY else extend
    # Under verification the lengths are those of what is verified; when extending, the new tokens are counted in.
    lengths = before if mode == ForwardMode.TARGET_VERIFY else [n + new for n in before]
    forward = batch(mode, rows, lengths, new_slots(served.table, rows, before, new), **more)
    backend.init_forward_metadata(forward)
    out, query = served.run(backend, forward, new)
    for i, (row, length) in enumerate(zip(rows, before, strict=True)):
        visible = torch.cat([torch.ones(new, length, dtype=torch.bool), own[i]], 1)
        part = slice(i * new, (i + 1) * new)
        expected = served.expected(query[part], served.table[row, : length + new], visible)
        assert (out[part] - expected).abs().max() < 1e-6


@pytest.mark.parametrize("topk", [1, 2])
def test_draft_decoding_sees_its_own_branch_only(topk: int) -> None:
    from draftproof_sglang.cpu.backend import DraftDecodeBackend

    served, rows, lengths, steps = Served(), [3, 1], [7, 19], 3
    backend = DraftDecodeBackend(served.runner, topk, steps)
    assert len(backend.attn_backends) == steps - 1
    forward = batch(ForwardMode.DECODE, rows, lengths, torch.zeros(0))
    backend.init_forward_metadata(forward)
    for step, child in enumerate(backend.attn_backends, start=1):
        branches = [
            (served.table[row, :length], served.table[row, length + b * steps : length + b * steps + step])
            for row, length in zip(rows, lengths, strict=True)
            for b in range(topk)
        ]
        forward.out_cache_loc = torch.stack([own[-1] for _, own in branches]).long()
        out, query = served.run(child, forward, topk)
        for i, (verified, own) in enumerate(branches):
            slots = torch.cat([verified, own])
            expected = served.expected(query[i : i + 1], slots, torch.ones(1, len(slots), dtype=torch.bool))
            assert (out[i] - expected[0]).abs().max() < 1e-6
