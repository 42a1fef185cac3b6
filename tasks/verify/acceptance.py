"""Speculative decoding with a greedy chain, simulated as SGLang 0.5.23 does and counts it, for every draft length at once.

A server commits only what the target says, so its text is the plain greedy one whatever is drafted, and the features
of a position depend on that text alone. The drafter's cache holds committed positions with the target's features
(draft extend), then the draft's own. A draft token feeds the next draft step only as long as all before it are right,
that is equal to the text. So the drafts at a position are the teacher-forced unroll along the text, up to the first
wrong one, and one unroll says for each position how many drafts would be right, whichever the draft length.

How SGLang counts (managers/scheduler_components/batch_result_processor.py, _resolve_spec_v2_tokens): the prefill gives
the first token without a verify round; a round's right drafts are counted before the answer is cut at an end of
sequence or the limit; no round is counted for a request that has ended.

Trees (topk > 1) would be another `right_drafts`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tasks.statistics import ratio_of_sums
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


def play(right: Sequence[int], output_tokens: int, steps: int) -> PromptCounts:
    """The rounds of one request with `steps` drafts per round."""
    histogram = [0] * (steps + 1)
    length = 1
    while length < output_tokens:
        accepted = min(right[length - 1], steps)
        histogram[accepted] += 1
        length += accepted + 1
    return PromptCounts(output_tokens=output_tokens, verify_rounds=sum(histogram), histogram=histogram)


def predict(drafter: Drafter, texts: Sequence[Text], steps: Sequence[int]) -> list[Prediction]:
    """What a float32 server will count on these texts, for each draft length. Empty without a verify round."""
    right = [right_drafts(drafter, text, max(steps)) for text in texts]
    return [
        prediction
        for length in sorted(set(steps))
        if (prediction := _total(length, [play(row, text.output_tokens, length) for row, text in zip(right, texts, strict=True)]))
    ]


def _total(steps: int, prompts: list[PromptCounts]) -> Prediction | None:
    histogram = [sum(counts) for counts in zip(*(prompt.histogram for prompt in prompts), strict=True)]
    rounds = sum(histogram)
    if not rounds:
        return None
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
