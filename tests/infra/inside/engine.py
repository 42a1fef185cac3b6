"""As much of a model runner as the attention backend looks at."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.plugins import load_plugins

load_plugins()

from sglang.srt.layers.radix_attention import RadixAttention  # noqa: E402
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool  # noqa: E402
from sglang.srt.model_executor.forward_batch_info import ForwardMode  # noqa: E402

LAYERS, HEADS, SHARED, SIZE, SLOTS = 2, 4, 2, 8, 200


def model(**layer: Any) -> torch.nn.Module:
    """As much of a model as the backend looks at: its attention layers."""
    plain = {"num_heads": HEADS, "head_dim": SIZE, "scaling": 0.3, "num_kv_heads": SHARED}
    return torch.nn.ModuleList(RadixAttention(**{**plain, **layer}, layer_id=i) for i in range(LAYERS))


def runner(layers: torch.nn.Module | None = None, **changes: Any) -> Any:
    pool = MHATokenToKVPool(SLOTS, 1, changes.pop("kv_dtype", torch.float32), SHARED, SIZE, LAYERS, "cpu", False)
    pool.kv_cache_layout = changes.pop("layout", "nhd")
    args = {"enable_deterministic_inference": False, "enable_torch_compile": False, "speculative_draft_window_size": None}
    table = torch.zeros(4, 64, dtype=torch.int32)
    return SimpleNamespace(
        req_to_token_pool=SimpleNamespace(req_to_token=table),
        token_to_kv_pool=changes.pop("pool", pool),
        page_size=changes.pop("page_size", 1),
        server_args=SimpleNamespace(**{**args, **changes}),
        model=layers or model(),
    )


def causally(query_TQD: torch.Tensor, key_NHD: torch.Tensor, value_NHD: torch.Tensor, visible_TN: torch.Tensor) -> torch.Tensor:
    keys, values = (x.repeat_interleave(HEADS // SHARED, 1).transpose(0, 1) for x in (key_NHD, value_NHD))
    scores = (query_TQD.transpose(0, 1) @ keys.transpose(1, 2) * 0.3).masked_fill(~visible_TN, float("-inf"))
    return (torch.softmax(scores, -1) @ values).transpose(0, 1).reshape(len(query_TQD), -1)


def batch(mode: ForwardMode, rows: list[int], lengths: list[int], new_slots: torch.Tensor, **more: Any) -> Any:
    return SimpleNamespace(
        forward_mode=mode, req_pool_indices=torch.tensor(rows), seq_lens=torch.tensor(lengths), out_cache_loc=new_slots, **more
    )


class Served:
    """Two requests with tokens in the cache, one contiguous and one scattered, and the backend under test."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.runner = runner()
        self.table = self.runner.req_to_token_pool.req_to_token
        self.table[1] = torch.arange(20, 84)
        self.table[3] = torch.randperm(100)[:64] + 100
        for buffer in (*self.runner.token_to_kv_pool.k_buffer, *self.runner.token_to_kv_pool.v_buffer):
            buffer.normal_()

    def run(self, backend: Any, forward: Any, per_request: int) -> tuple[torch.Tensor, torch.Tensor]:
        """All layers; what the last gave [T, Q * D], and the query it got."""
        tokens = per_request * 2
        for layer in self.runner.model:
            query, key, value = (torch.randn(tokens, heads * SIZE) for heads in (HEADS, SHARED, SHARED))
            out = backend.forward(query, key.view(tokens, SHARED, SIZE), value.view(tokens, SHARED, SIZE), layer, forward)
            keys, values = self.runner.token_to_kv_pool.get_kv_buffer(layer.layer_id)
            assert torch.equal(keys[forward.out_cache_loc], key.view(tokens, SHARED, SIZE))
            assert torch.equal(values[forward.out_cache_loc], value.view(tokens, SHARED, SIZE))
        return out, query.view(tokens, HEADS, SIZE)

    def expected(self, query: torch.Tensor, slots: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        keys, values = self.runner.token_to_kv_pool.get_kv_buffer(LAYERS - 1)
        return causally(query, keys[slots.long()], values[slots.long()], visible)


def new_slots(table: torch.Tensor, rows: list[int], lengths: list[int], new: int) -> torch.Tensor:
    return torch.cat([table[row, length : length + new] for row, length in zip(rows, lengths, strict=True)]).long()
