"""Trees of drafts (topk > 1), grown, cut and walked as SGLang 0.5.23 does, for every position of a text at once.

One round: the drafter proposes `topk` tokens; each further step extends `topk` branches by `topk` tokens each, and the
`topk` likeliest of those are extended next (likelihood: the product of the drafter's probabilities from the root on).
Of all proposals the `draft_tokens - 1` likeliest are verified (srt/speculative/spec_utils.py, select_top_k_tokens;
eagle_utils.py, organize_draft_results). The right drafts of a round are the longest path in that tree which the text takes.

One property of the engine is kept on purpose: a branch's earlier keys and values are those of its *slot*, not of its
parent. A branch that continues slot 2's token in slot 0 takes slot 2's hidden state along, but attends to what slot 0
drafted before (eagle_worker_v2.py: the cache locations of a slot are fixed for the whole round).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tasks.verify.drafter import Drafter
from tasks.verify.greedy import Text
from tasks.verify.memory import Unrolled

NEAR_TIE = 1e-4
"""Relative distance of two likelihoods below which another rounding of the same numbers could choose otherwise."""


@dataclass(frozen=True)
class Shape:
    """What a server is asked for: draft steps, branches per step, tokens verified per round (the root, which is no draft, is one)."""

    steps: int
    topk: int
    draft_tokens: int


@dataclass(frozen=True)
class Proposals:
    """Everything that a round could verify, for R rounds. N = topk + (steps - 1) · topk² proposals.

    `scores_RN`: likelihood of the path to a proposal. `parents_RP`: the proposal that each extended branch is, -1 for
    the root: a proposal n is a child of branch n // topk.
    """

    tokens_RN: torch.Tensor
    scores_RN: torch.Tensor
    parents_RP: torch.Tensor
    near_tie_R: torch.Tensor


@torch.inference_mode()
def right_drafts(drafter: Drafter, text: Text, shape: Shape) -> tuple[list[int], list[bool]]:
    """For each length m of the output so far, 1 <= m < output_tokens, how many drafts of a tree made then are right;
    and whether a near-tie of scores could have made another tree.

    `text` must run at least `shape.steps` tokens past its end.
    """
    first, rounds = text.prompt_length - 1, max(0, text.output_tokens - 1)
    if not rounds:
        return [], []
    found = _propose(drafter, text, first, rounds, shape)
    chosen_RM = choose(found.scores_RN, shape)
    near_R = found.near_tie_R | _close(found.scores_RN, shape.draft_tokens - 1)
    futures = [text.tokens[first + 2 + r : first + 2 + r + shape.steps] for r in range(rounds)]
    rows = zip(chosen_RM.tolist(), found.tokens_RN.tolist(), found.parents_RP.tolist(), futures, strict=True)
    return [walk(chosen, tokens, parents, future, shape.topk) for chosen, tokens, parents, future in rows], near_R.tolist()


def choose(scores_RN: torch.Tensor, shape: Shape) -> torch.Tensor:
    """The proposals that are verified, in ascending order, [R, draft_tokens - 1]."""
    return scores_RN.topk(shape.draft_tokens - 1, -1).indices.sort(-1).values


def _propose(drafter: Drafter, text: Text, first: int, rounds: int, shape: Shape) -> Proposals:
    """Draft every round's branches, all rounds side by side."""
    tokens = torch.tensor(text.tokens, device=drafter.device)
    hidden_SH = drafter.hidden(text.features_SnH[None].to(drafter.device, torch.float32))
    # The last committed token of round r is x[first + 1 + r], at index first + r.
    at_R = torch.arange(first, first + rounds, device=drafter.device)
    length = len(text.tokens) - 1
    memory = Unrolled(drafter.architecture.attention_window, moving=True, rows=at_R.repeat_interleave(shape.topk))
    final, hidden = drafter.step(tokens[None, 1:], hidden_SH, torch.arange(length, device=drafter.device)[None], memory)
    tree = Growing(shape.topk)
    state_RH, hidden_RH = final[0, at_R], hidden[0, at_R]
    for step in range(shape.steps):
        input_Rk, parent_Rk = tree.extend(*_likeliest(drafter, state_RH, shape.topk))
        if step == shape.steps - 1:
            break
        hidden_RkH = hidden_RH.unflatten(0, (rounds, -1)).gather(1, parent_Rk[..., None].expand(-1, -1, hidden_RH.shape[-1]))
        positions = (at_R + step + 1).repeat_interleave(shape.topk)
        final, hidden = drafter.step(input_Rk.reshape(1, -1), hidden_RkH.reshape(1, -1, hidden_RH.shape[-1]), positions[None], memory)
        state_RH, hidden_RH = final[0], hidden[0]
    return tree.proposals()


def _likeliest(drafter: Drafter, state_BH: torch.Tensor, topk: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Probabilities and target ids of the `topk` likeliest next tokens, [B, topk]; whether the choice was a near-tie, [B]."""
    probabilities = drafter.logits(state_BH).softmax(-1)
    best = probabilities.topk(topk, -1)
    return best.values, drafter.target_ids_V[best.indices], _close(probabilities, topk)


def _close(scores_BN: torch.Tensor, kept: int) -> torch.Tensor:
    """Whether the last that is kept and the first that is not nearly tie, [B]."""
    if kept >= scores_BN.shape[-1]:
        return torch.zeros(len(scores_BN), dtype=torch.bool, device=scores_BN.device)
    best = scores_BN.topk(kept + 1, -1).values
    return best[:, -2] - best[:, -1] < NEAR_TIE * best[:, -2]


class Growing:
    """The proposals of R rounds, step by step; the tensors are named and numbered as SGLang's `select_top_k_tokens` does."""

    def __init__(self, topk: int) -> None:
        self._topk = topk
        self._scores: list[torch.Tensor] = []
        self._tokens: list[torch.Tensor] = []
        self._parents: list[torch.Tensor] = []
        self._near: list[torch.Tensor] = []
        self._branches_Rk = torch.empty(0)

    def extend(self, p_Bk: torch.Tensor, tokens_Bk: torch.Tensor, near_B: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Take the likeliest next tokens of every branch (B = R at the first step, then R · topk).

        Returns the tokens of the branches that are drafted from next, and the branch before that each continues, [R, topk].
        """
        k, step = self._topk, len(self._scores)
        if step == 0:
            self._scores.append(p_Bk)
            self._tokens.append(tokens_Bk)
            self._parents.append(torch.arange(-1, k, device=p_Bk.device).expand(len(p_Bk), -1))
            self._near.append(near_B)
            self._branches_Rk = p_Bk
            return tokens_Bk, torch.zeros_like(tokens_Bk)
        scores = (self._branches_Rk[:, :, None] * p_Bk.view(-1, k, k)).flatten(1)
        tokens = tokens_Bk.reshape(-1, k * k)
        best = scores.topk(k, -1)
        self._scores.append(scores)
        self._tokens.append(tokens)
        self._parents.append(best.indices + k * k * (step - 1) + k)
        self._near += [near_B.view(-1, k).any(-1), _close(scores, k)]
        self._branches_Rk = best.values
        return tokens.gather(1, best.indices), best.indices // k

    def proposals(self) -> Proposals:
        parents = torch.cat(self._parents[:-1], 1) if len(self._parents) > 1 else self._parents[0][:, :1]
        near = torch.stack(self._near).any(0)
        return Proposals(torch.cat(self._tokens, 1), torch.cat(self._scores, 1), parents, near)


def walk(chosen: list[int], tokens: list[int], parents: list[int], future: list[int], topk: int) -> int:
    """How far the text goes down the tree: at each node to the first child, in the order of `chosen`, that is its next token."""
    node, depth = -1, 0
    for wanted in future:
        child = next((n for n in chosen if parents[n // topk] == node and tokens[n] == wanted), None)
        if child is None:
            break
        node, depth = child, depth + 1
    return depth
