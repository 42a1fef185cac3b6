"""Run by test_inside_sglang.py, in a process of its own: SGLang with our plugin, and Triton's interpreter for SGLang's own kernels."""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from draftproof_sglang.cpu import BACKEND, hooks, linear, refusals, rotary, self_check, standin, tree
from sglang.srt.plugins import load_plugins

load_plugins()

from sglang.kernels.ops.speculative import spec_tree  # noqa: E402
from sglang.srt.layers.logits_processor import LogitsProcessor  # noqa: E402
from sglang.srt.layers.quantization.unquant import UnquantizedEmbeddingMethod, UnquantizedLinearMethod  # noqa: E402
from sglang.srt.layers.radix_attention import AttentionType, RadixAttention  # noqa: E402
from sglang.srt.layers.rotary_embedding.base import RotaryEmbedding  # noqa: E402
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool  # noqa: E402
from sglang.srt.model_executor.forward_batch_info import ForwardMode  # noqa: E402
from sglang.srt.model_executor.model_runner_components.weight_updater import WeightUpdater  # noqa: E402
from sglang.srt.plugins.hook_registry import HookRegistry  # noqa: E402
from sglang.srt.sampling.sampling_params import SamplingParams  # noqa: E402
from sglang.srt.speculative.eagle_utils import organize_draft_results  # noqa: E402
from sglang.srt.speculative.spec_utils import select_top_k_tokens  # noqa: E402

VOCABULARY = 20


# ---- trees


def drafted(topk: int, steps: int, batch: int, draft_tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A tree drawn at random, chosen and numbered by SGLang's own functions: parents, selected candidates, tokens."""
    scores, hidden, tables = None, torch.randn(batch, 4), []
    probabilities, tokens = torch.softmax(torch.randn(batch, VOCABULARY), -1).topk(topk, -1)
    for step in range(steps):
        _, hidden, scores, info = select_top_k_tokens(step, probabilities, tokens, hidden, scores, topk)
        tables.append(info)
        probabilities, tokens = torch.softmax(torch.randn(batch * topk, VOCABULARY), -1).topk(topk, -1)
    return organize_draft_results(*(list(table) for table in zip(*tables, strict=True)), draft_tokens)


def shapes() -> list[tuple[int, int, int, int]]:
    """(topk, steps, batch, draft tokens): chains, and trees up to what their candidates allow."""
    draw = random.Random(0)
    chosen = [(1, steps, batch, steps + 1) for steps in (1, 3, 5) for batch in (1, 3)]
    for _ in range(14):
        topk, steps = draw.choice([2, 4]), draw.choice([1, 2, 3, 5])
        most = 1 + topk + (steps - 1) * topk * topk
        chosen.append((topk, steps, draw.choice([1, 3]), draw.randint(2, min(most, 12))))
    return chosen


@pytest.mark.parametrize(("topk", "steps", "batch", "nodes"), shapes())
def test_tree_kernels_against_triton(topk: int, steps: int, batch: int, nodes: int) -> None:
    torch.manual_seed(topk * 100 + steps * 10 + nodes)
    parents, selected, tokens = drafted(topk, steps, batch, nodes)
    lengths = torch.randint(1, 9, (batch,))

    def build(kernel: Any, mode: int) -> list[torch.Tensor]:
        mask = torch.ones(batch * nodes * nodes + (nodes * int(lengths.sum()) if mode == 0 else 0), dtype=torch.bool)
        links = [torch.full((batch, nodes), -1) for _ in range(3)]
        out = [mask, torch.zeros(batch * nodes, dtype=torch.int64), *links]
        kernel(parents, selected, lengths, *out, topk, steps, nodes, mode)
        return out

    for mode in (0, 1):
        ours, theirs = build(tree.build_tree_kernel_efficient_cpu, mode), build(spec_tree.sgl_build_tree_kernel_triton, mode)
        for name, got, expected in zip(("mask", "positions", "index", "child", "sibling"), ours, theirs, strict=True):
            assert torch.equal(got, expected), (name, mode)
    index, child, sibling = ours[2:]

    candidates = torch.cat([torch.randint(VOCABULARY, (batch, 1)), tokens], 1)
    target = torch.randint(VOCABULARY, (batch, nodes))
    for request in range(batch):  # or next to nothing would be accepted
        for node in range(nodes):
            if child[request, node] != -1 and random.random() < 0.7:
                target[request, node] = candidates[request, child[request, node]]

    def verify(kernel: Any) -> list[torch.Tensor]:
        out = [torch.zeros(batch * nodes), torch.full((batch, steps + 1), -1), torch.zeros(batch)]
        out = [tensor.int() for tensor in out]
        kernel(*out, candidates, index, child, sibling, target)
        return out

    for got, expected in zip(verify(tree.verify_tree_greedy_cpu), verify(spec_tree.verify_tree_greedy_triton), strict=True):
        assert torch.equal(got, expected)


# ---- the backend

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


# ---- linear layers


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


# ---- rotary embedding


def rope(size: int = 8, rotary_dim: int = 8, neox: bool = True, dtype: torch.dtype = torch.float32) -> RotaryEmbedding:
    return RotaryEmbedding(size, rotary_dim, 64, 10000, neox, dtype)


def rotated(embedding: Any, positions: torch.Tensor, dtype: torch.dtype = torch.float32) -> tuple[bool, bool]:
    """Whether the result is SGLang's own fallback's to the bit, and whether ours made it."""
    packed = torch.randn(len(positions), (6 + 2 + 2) * 8, dtype=dtype)
    query, key, _ = packed.split([48, 16, 16], dim=-1)
    expected = RotaryEmbedding.forward_native.__wrapped__(embedding, positions, query.clone(), key.clone())
    got = embedding(positions, query, key)  # by SGLang's own dispatch
    return all(torch.equal(*pair) for pair in zip(got, expected, strict=True)), hasattr(embedding, rotary._TABLES)


@pytest.mark.parametrize("tokens", [1, 4, 40])
def test_rotary_embedding_is_sglangs_own_to_the_bit(tokens: int) -> None:
    embedding, positions = rope(), torch.randperm(50)[:tokens]
    assert rotated(embedding, positions) == (True, True)
    positions.add_(1)  # as SGLang's draft steps do
    assert rotated(embedding, positions) == (True, True)
    embedding.cos_sin_cache = embedding.cos_sin_cache * 2
    assert rotated(embedding, positions) == (True, True)


@pytest.mark.parametrize("other", [{"rotary_dim": 4}, {"neox": False}, {"dtype": torch.bfloat16}])
def test_other_rotary_embeddings_are_left_to_sglang(other: dict[str, Any]) -> None:
    assert rotated(rope(**other), torch.arange(5), other.get("dtype", torch.float32)) == (True, False)


# ---- refusals


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


# ---- the self-check


def test_everything_is_in_place() -> None:
    self_check.or_exit(self_check.version, self_check.targets, self_check.in_place)


def test_amx_branches_are_off_also_where_the_cpu_has_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.utils import common

    monkeypatch.setattr(common, "is_amx_tile_supported", True)
    assert not common.cpu_has_amx_support()


def test_a_wrong_version_stops_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_check, "installed_version", lambda _: "0.5.24")
    with pytest.raises(SystemExit, match=r"sglang 0\.5\.24 is installed; it was written for sglang 0\.5\.23"):
        self_check.or_exit(self_check.version)


def test_a_hooked_function_that_changed_stops_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "HOOKS", (replace(hooks.HOOKS[0], parameters=("self",)),))
    with pytest.raises(SystemExit, match="takes"):
        self_check.or_exit(self_check.targets)
    monkeypatch.setattr(hooks, "HOOKS", (replace(hooks.HOOKS[0], target="sglang.srt.speculative.draft_utils.Gone.method"),))
    with pytest.raises(SystemExit, match="is missing"):
        self_check.or_exit(self_check.targets)


def test_a_hook_that_did_not_take_and_a_name_that_is_not_ours_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(HookRegistry, "_patched", set())
        with pytest.raises(self_check.Mismatch, match="did not take"):
            self_check.in_place()
    monkeypatch.setattr(spec_tree, "sgl_verify_tree_greedy_cpu", lambda: None)
    with pytest.raises(self_check.Mismatch, match="sgl_verify_tree_greedy_cpu"):
        self_check.in_place()


def test_every_function_of_the_standin_is_checked_where_sglang_binds_it() -> None:
    assert {ours for names in self_check._BOUND.values() for ours in names.values()} == set(standin.FUNCTIONS)


@pytest.mark.parametrize(("asked", "becomes"), [(None, BACKEND), ("intel_amx", BACKEND), ("torch_native", "torch_native")])
def test_only_sglangs_own_default_is_replaced(asked: str | None, becomes: str) -> None:
    from sglang.srt.platforms import current_platform

    args = SimpleNamespace(attention_backend=asked)
    current_platform.apply_server_args_defaults(args)
    assert args.attention_backend == becomes
