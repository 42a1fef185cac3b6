"""Greedy speculative decoding, simulated as SGLang 0.5.23 does and counts it, for every draft length at once.

A server commits only what the target says, so its text is the plain greedy one whatever is drafted, and the features
of a position depend on that text alone. The drafter's cache holds committed positions with the target's features
(draft extend), then the draft's own. A draft token feeds the next draft step only as long as all before it are right,
that is equal to the text. So the drafts at a position are the teacher-forced unroll along the text, up to the first
wrong one, and one unroll says for each position how many drafts of a chain would be right, whichever the draft length
(trees: `tasks.verify.tree`).

How SGLang counts (managers/scheduler_components/batch_result_processor.py, _resolve_spec_v2_tokens): the prefill gives
the first token without a verify round; a round's right drafts are counted before the answer is cut at an end of
sequence or the limit; no round is counted for a request that has ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from tasks.statistics import ratio_of_sums
from tasks.verify import tree
from tasks.verify.drafter import Drafter
from tasks.verify.greedy import Text
from tasks.verify.results import Prediction, PromptCounts


@torch.inference_mode()
def right_drafts(drafter: Drafter, text: Text, longest: int) -> list[int]:
    """For each length m of the output so far, 1 <= m < output_tokens, how many of `longest` drafts made then are right.

    `text` must run at least `longest` tokens past its end.
    """
    tokens = torch.tensor(text.tokens)
    # Output of length m: the last committed token is x[n] with n = prompt + m - 1, which index n - 1 takes.
    first, rounds = text.prompt_length - 1, max(0, text.output_tokens - 1)
    features = torch.cat([text.features_SnH, text.features_SnH[-1:]])
    so_far = torch.ones(rounds, dtype=torch.bool)
    right = torch.zeros(rounds, dtype=torch.int64)
    for k, final in enumerate(drafter.unroll(tokens[None], features[None], longest, serving=True)):
        drafts = drafter.target_ids_V[drafter.logits(final[0, first : first + rounds]).argmax(-1)].cpu()
        so_far &= drafts == tokens[first + 2 + k : first + 2 + k + rounds]
        right += so_far
    return [int(n) for n in right]


def lengths(right: Sequence[int], output_tokens: int, steps: int) -> Iterator[int]:
    """The length of the output before each round of one request."""
    length = 1
    while length < output_tokens:
        yield length
        length += min(right[length - 1], steps) + 1


def play(right: Sequence[int], output_tokens: int, steps: int) -> PromptCounts:
    """The rounds of one request with `steps` drafts per round."""
    histogram = [0] * (steps + 1)
    for length in lengths(right, output_tokens, steps):
        histogram[min(right[length - 1], steps)] += 1
    return PromptCounts(output_tokens=output_tokens, verify_rounds=sum(histogram), histogram=histogram)


def predict(drafter: Drafter, texts: Sequence[Text], steps: Sequence[int]) -> list[Prediction]:
    """What a float32 server will count on these texts with chains of each length. Empty without a verify round."""
    right = [right_drafts(drafter, text, max(steps)) for text in texts]
    played = {length: [play(row, text.output_tokens, length) for row, text in zip(right, texts, strict=True)] for length in steps}
    return [total(length, played[length]) for length in sorted(played) if any(prompt.verify_rounds for prompt in played[length])]


def predict_tree(drafter: Drafter, texts: Sequence[Text], shape: tree.Shape) -> Prediction | None:
    """What a float32 server will count on these texts with a tree; None without a verify round.

    Where two paths are nearly as likely, a server's rounding may verify the other one: such rounds are counted.
    """
    prompts, near_ties = [], 0
    for text in texts:
        right, near = tree.right_drafts(drafter, text, shape)
        prompts.append(play(right, text.output_tokens, shape.steps))
        near_ties += sum(near[length - 1] for length in lengths(right, text.output_tokens, shape.steps))
    if not any(prompt.verify_rounds for prompt in prompts):
        return None
    return total(shape.steps, prompts).model_copy(update={"topk": shape.topk, "draft_tokens": shape.draft_tokens, "near_ties": near_ties})


def total(steps: int, prompts: list[PromptCounts]) -> Prediction:
    """The sums over prompts with at least one verify round."""
    histogram = [sum(counts) for counts in zip(*(prompt.histogram for prompt in prompts), strict=True)]
    rounds = sum(histogram)
    drafts = [sum(right * count for right, count in enumerate(prompt.histogram)) for prompt in prompts]
    committed = [right + prompt.verify_rounds for right, prompt in zip(drafts, prompts, strict=True)]
    return Prediction(
        steps=steps,
        output_tokens=sum(prompt.output_tokens for prompt in prompts),
        verify_rounds=rounds,
        right_drafts=sum(drafts),
        histogram=histogram,
        accept_length=ratio_of_sums(committed, [prompt.verify_rounds for prompt in prompts]),
        per_prompt=prompts,
    )
