"""The attention backend `cpu_sdpa`, for the target and for the drafter.

SGLang calls `init_forward_metadata` once per forward and `forward_*` once per layer, so everything that does not depend on the layer is
worked out in the first. Shapes: T tokens, Q query heads, H heads of the cache, D head size.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.model_executor.forward_batch_info import ForwardBatch
from torch import Tensor

from draftproof_sglang.cpu import refusals, self_check
from draftproof_sglang.cpu.attention import attend
from draftproof_sglang.cpu.rows import Rows, Span, causal_spans, tree_span


class CpuSdpaBackend(AttentionBackend):
    """Attention in PyTorch for decoding, prefill, verification of chains and trees, and the drafter's own forwards."""

    def __init__(self, runner: Any) -> None:
        super().__init__()
        self_check.in_place()
        refusals.refuse_model(runner)
        self.req_to_token: Tensor = runner.req_to_token_pool.req_to_token
        self.pool = runner.token_to_kv_pool
        self.spans: list[Span] = []  # in the order of the queries, which together they cover
        self._new_slots: Tensor | None = None
        self._new_rows = Rows(0, 0, None)

    def init_forward_metadata(self, forward_batch: ForwardBatch) -> None:
        self._new_slots = None
        mode = forward_batch.forward_mode
        if mode.is_decode_or_idle():
            self.spans = self._decode_spans(forward_batch)
        elif mode.is_target_verify():
            self.spans = self._verify_spans(forward_batch)
        else:
            self.spans = self._extend_spans(forward_batch)

    def _slots(self, forward_batch: ForwardBatch, new: int = 0) -> list[Tensor]:
        """Each request's slots [N], `new` ones after its length counted in."""
        requests = zip(forward_batch.req_pool_indices.tolist(), forward_batch.seq_lens.tolist(), strict=True)
        return [self.req_to_token[row, : length + new] for row, length in requests]

    def _decode_spans(self, forward_batch: ForwardBatch) -> list[Span]:
        return [Span(slice(i, i + 1), Rows.at(slots)) for i, slots in enumerate(self._slots(forward_batch))]

    def _extend_spans(self, forward_batch: ForwardBatch) -> list[Span]:
        starts, lengths = forward_batch.extend_start_loc.tolist(), forward_batch.extend_seq_lens.tolist()
        requests = zip(starts, self._slots(forward_batch), lengths, strict=True)
        return [span for start, slots, length in requests for span in causal_spans(start, slots, length)]

    def _verify_spans(self, forward_batch: ForwardBatch) -> list[Span]:
        """Such a batch has no `extend_*` fields: every request extends by the same number of draft tokens."""
        spec = forward_batch.spec_info
        new = spec.draft_token_num
        requests = list(enumerate(self._slots(forward_batch, new)))
        if spec.tree_topk == 1:  # a chain, which is what causal means
            return [span for i, slots in requests for span in causal_spans(i * new, slots, new)]
        trees = spec.custom_mask.view(len(requests), new, new).bool()
        return [tree_span(i * new, slots, trees[i]) for i, slots in requests]

    def forward_decode(
        self, q: Tensor, k: Tensor, v: Tensor, layer: RadixAttention, forward_batch: ForwardBatch, *args: Any, **kwargs: Any
    ) -> Tensor:
        return self._forward(q, k, v, layer, forward_batch, *args, **kwargs)

    def forward_extend(
        self, q: Tensor, k: Tensor, v: Tensor, layer: RadixAttention, forward_batch: ForwardBatch, *args: Any, **kwargs: Any
    ) -> Tensor:
        return self._forward(q, k, v, layer, forward_batch, *args, **kwargs)

    def _forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        layer: RadixAttention,
        forward_batch: ForwardBatch,
        save_kv_cache: bool = True,
        **unknown: Any,
    ) -> Tensor:
        refusals.refuse_call(layer, unknown)
        keys_XHD, values_XHD = self.pool.get_kv_buffer(layer.layer_id)
        if save_kv_cache and k is not None:
            rows = self._rows_of(forward_batch.out_cache_loc)
            rows.write(keys_XHD, k.view(-1, layer.tp_k_head_num, layer.qk_head_dim))
            rows.write(values_XHD, v.view(-1, layer.tp_v_head_num, layer.v_head_dim))
        query_TQD = q.view(-1, layer.tp_q_head_num, layer.qk_head_dim)
        group = layer.tp_q_head_num // layer.tp_k_head_num
        attended = [
            attend(query_TQD[span.queries], span.rows.read(keys_XHD), span.rows.read(values_XHD), span.bias(group, q.dtype), layer.scaling)
            for span in self.spans
        ]
        return attended[0] if len(attended) == 1 else torch.cat(attended)

    def _rows_of(self, new_slots: Tensor) -> Rows:
        """Where this forward's tokens go: one tensor for all layers, but another for each of the drafter's steps."""
        if new_slots is not self._new_slots:
            self._new_slots, self._new_rows = new_slots, Rows.at(new_slots)
        return self._new_rows

    def support_triton(self) -> bool:
        return False


class DraftDecodeBackend:
    """The drafter's decoding: one child for each step after the first, which SGLang gives to that step's forward."""

    def __init__(self, runner: Any, topk: int, num_steps: int) -> None:
        self.topk, self.num_steps = topk, num_steps
        self.attn_backends = [CpuSdpaBackend(runner) for _ in range(num_steps - 1)]

    def init_forward_metadata(self, forward_batch: ForwardBatch) -> None:
        """Branch b of a request sees what is verified, then its own tokens so far, in slots `length + b * num_steps` and on."""
        for step, child in enumerate(self.attn_backends, start=1):
            child._new_slots = None
            child.spans = []
            for slots, length in zip(child._slots(forward_batch, self.topk * self.num_steps), forward_batch.seq_lens.tolist(), strict=True):
                for branch in range(self.topk):
                    start = length + branch * self.num_steps
                    own = slots[: length + step] if branch == 0 else torch.cat([slots[:length], slots[start : start + step]])
                    at = len(child.spans)
                    child.spans.append(Span(slice(at, at + 1), Rows.at(own)))
