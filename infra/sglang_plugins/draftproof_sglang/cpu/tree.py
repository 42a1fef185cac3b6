"""Building and verifying the tree of draft tokens: the functions of `sgl_kernel` that SGLang 0.5.23 calls with these names.

Same contract as the Triton kernels in `sglang/kernels/ops/speculative/spec_tree.py`, and tested against them. Trees have a few dozen
nodes, so plain lists are faster here than tensors of a few numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor

_FULL_MASK, _QLEN_ONLY = 0, 1  # spec_tree.TreeMaskMode


def build_tree_kernel_efficient_cpu(
    parent_list: Tensor,
    selected_index: Tensor,
    verified_seq_len: Tensor,
    tree_mask: Tensor,
    positions: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int = _FULL_MASK,
) -> None:
    """Fill the mask (who sees whom), the positions and the first-child / next-sibling links of each request's tree."""
    if int(tree_mask_mode) not in (_FULL_MASK, _QLEN_ONLY):
        raise NotImplementedError(f"tree mask mode {tree_mask_mode} (bit packed) is for GPUs; this backend takes modes 0 and 1")
    nodes, filled = draft_token_num, 0
    requests = zip(verified_seq_len.tolist(), selected_index.tolist(), parent_list.tolist(), strict=True)
    for request, (seq_len, selected, parents_of_groups) in enumerate(requests):
        parents = _parents(selected[: nodes - 1], parents_of_groups, topk)
        first_child, next_sibling = _links(parents)
        paths = [_path(node, parents, depth) for node in range(nodes)]

        retrieve_index[request] = torch.arange(request * nodes, (request + 1) * nodes)
        retrieve_next_token[request] = torch.tensor(first_child)
        retrieve_next_sibling[request] = torch.tensor(next_sibling)
        positions[request * nodes : (request + 1) * nodes] = torch.tensor([seq_len + len(path) for path in paths])

        width = nodes if int(tree_mask_mode) == _QLEN_ONLY else seq_len + nodes
        block = tree_mask[filled : filled + nodes * width].view(nodes, width)
        filled += nodes * width
        sees = [[node == 0 or node in path for node in range(nodes)] for path in paths]
        block[:, width - nodes :] = torch.tensor(sees).to(tree_mask.dtype)


def _parents(selected: list[int], parents_of_groups: list[int], topk: int) -> list[int]:
    """Each node's parent; node 0 is the root (the last verified token). -1: the parent was not selected."""
    node_of: dict[int, int] = {}
    for node, candidate in enumerate(selected, start=1):
        node_of.setdefault(candidate, node)
    parents = [-1]
    for candidate in selected:
        group = candidate // topk
        parents.append(0 if group == 0 else node_of.get(parents_of_groups[group], -1))
    return parents


def _links(parents: list[int]) -> tuple[list[int], list[int]]:
    first_child, next_sibling = [-1] * len(parents), [-1] * len(parents)
    for node in range(len(parents) - 1, 0, -1):
        parent = parents[node]
        if parent >= 0:
            next_sibling[node] = first_child[parent]
            first_child[parent] = node
    return first_child, next_sibling


def _path(node: int, parents: list[int], depth: int) -> list[int]:
    """The node and its ancestors without the root, at most `depth` of them."""
    path: list[int] = []
    while node > 0 and len(path) < depth:
        path.append(node)
        node = parents[node]
    return path


def verify_tree_greedy_cpu(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Walk down each tree as long as a child is the target's own argmax; the last prediction is the bonus token.

    `retrive` is SGLang's spelling: the functions are called with keywords.
    """
    most = accept_index.shape[1]
    target = target_predict.reshape(-1).tolist()
    requests = zip(candidates.tolist(), retrive_index.tolist(), retrive_next_token.tolist(), retrive_next_sibling.tolist(), strict=True)
    for request, (tokens, index, first_child, next_sibling) in enumerate(requests):
        node, accepted = 0, [index[0]]
        while len(accepted) < most:
            wanted, child = target[accepted[-1]], first_child[node]
            while child != -1 and tokens[child] != wanted:
                child = next_sibling[child]
            if child == -1:
                break
            node = child
            accepted.append(index[node])
        for at in accepted:
            predicts[at] = target[at]
        accept_index[request, : len(accepted)] = torch.tensor(accepted)
        accept_token_num[request] = len(accepted) - 1
