"""Trees: our kernels against SGLang's own Triton ones under the interpreter, our simulation against what SGLang builds.

Run by test_inside_sglang.py.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from draftproof_sglang.cpu import tree
from sglang.srt.plugins import load_plugins

load_plugins()

from sglang.kernels.ops.speculative import spec_tree  # noqa: E402
from sglang.srt.speculative.eagle_utils import organize_draft_results  # noqa: E402
from sglang.srt.speculative.spec_utils import select_top_k_tokens  # noqa: E402

from tasks.verify.tree import Growing, Shape, choose, walk  # noqa: E402

VOCABULARY = 20


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


@pytest.mark.parametrize(("topk", "steps", "batch", "nodes"), [shape for shape in shapes() if shape[0] > 1])
def test_simulated_trees_are_those_that_sglang_builds(topk: int, steps: int, batch: int, nodes: int) -> None:
    """The same probabilities, drafted by SGLang's functions and by the standalone verification's: tokens, parents, and the walk."""
    torch.manual_seed(nodes)
    growing, scores, hidden, tables = Growing(topk), None, torch.randn(batch, 4), []
    for step in range(steps):
        rows = batch if step == 0 else batch * topk
        chances, tokens = torch.softmax(torch.randn(rows, VOCABULARY), -1).topk(topk, -1)
        ids, hidden, scores, info = select_top_k_tokens(step, chances, tokens, hidden, scores, topk)
        tables.append(info)
        drafted_next, _ = growing.extend(chances, tokens, torch.zeros(rows, dtype=torch.bool))
        assert torch.equal(drafted_next.flatten(), ids)
    parents, selected, tokens = organize_draft_results(*(list(table) for table in zip(*tables, strict=True)), nodes)
    found, shape = growing.proposals(), Shape(steps, topk, nodes)
    chosen = choose(found.scores_RN, shape)
    assert torch.equal(chosen, selected)
    assert torch.equal(found.tokens_RN.gather(1, chosen), tokens)

    links = [torch.full((batch, nodes), -1) for _ in range(3)]
    mask, positions = torch.ones(batch * nodes * nodes, dtype=torch.bool), torch.zeros(batch * nodes, dtype=torch.int64)
    spec_tree.sgl_build_tree_kernel_triton(
        parents, selected, torch.ones(batch, dtype=torch.int64), mask, positions, *links, topk, steps, nodes, 1
    )
    candidates = torch.cat([torch.zeros(batch, 1, dtype=torch.int64), tokens], 1)
    for _ in range(20):
        future = torch.randint(VOCABULARY, (batch, steps + 1))
        for request in range(batch):  # follow a branch for a while, or next to nothing would be accepted
            node = 0
            for depth in range(steps):
                children = [n for n in range(1, nodes) if positions.view(batch, nodes)[request, n] == 2 + depth]
                children = [n for n in children if mask.view(batch, nodes, nodes)[request, n, node]]
                if not children or random.random() < 0.2:
                    break
                node = random.choice(children)
                future[request, depth] = candidates[request, node]
        depths = positions.view(batch, nodes) - 1
        target = future.gather(1, depths)  # whatever was drafted at a depth, the target says the text's next token there
        out = [torch.zeros(batch * nodes).int(), torch.full((batch, steps + 1), -1).int(), torch.zeros(batch).int()]
        spec_tree.verify_tree_greedy_triton(*out, candidates, *links, target)
        walked = [
            walk(chosen[r].tolist(), found.tokens_RN[r].tolist(), found.parents_RP[r].tolist(), future[r, :steps].tolist(), topk)
            for r in range(batch)
        ]
        assert walked == out[2].tolist()
