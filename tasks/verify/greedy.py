"""The target's plain greedy text, with its features: what every draft length decodes to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch

from tasks.wiring.target import TargetForward


@dataclass(frozen=True)
class Text:
    """A prompt with its greedy continuation, run on for some tokens past its end.

    `output_tokens` of the continuation are what a server returns; the rest is what it would have said next, which
    decides how many drafts of the last round are right. `features_SnH` has one row less than there are tokens.
    """

    tokens: list[int]
    prompt_length: int
    output_tokens: int
    features_SnH: torch.Tensor

    def with_features(self, features_SnH: torch.Tensor) -> Text:
        """The same text, fed otherwise."""
        return replace(self, features_SnH=features_SnH)


@torch.inference_mode()
def greedy_text(
    target: TargetForward, prompt: list[int], boundaries: Sequence[int], *, max_new_tokens: int, overrun: int, guess: Sequence[int] = ()
) -> Text:
    """Decode `prompt` greedily, `overrun` tokens past an end of sequence or past `max_new_tokens`.

    `guess` is what the answer might be: its right part costs one forward instead of one per token, and changes
    nothing else.
    """
    prefix = len(prompt)
    target.start()
    guessed = list(guess)[: max_new_tokens + overrun]
    logits, features = target.extend(torch.tensor(prompt + guessed), boundaries, last_logits=len(guessed) + 1)
    said = logits.argmax(-1).tolist()
    right = _common(guessed, said)
    output = said[: right + 1]
    kept = [features[: prefix + right]]
    target.crop(prefix + right)
    while len(output) < _end(output, max_new_tokens, target.facts.eos_token_ids) + overrun:
        logits, features = target.extend(torch.tensor(output[-1:]), boundaries, last_logits=1)
        kept.append(features)
        output.append(int(logits[-1].argmax()))
    end = _end(output, max_new_tokens, target.facts.eos_token_ids)
    tokens = prompt + output[: end + overrun]
    return Text(tokens, prefix, end, torch.cat(kept)[: len(tokens) - 1])


@torch.inference_mode()
def given_text(target: TargetForward, prompt: list[int], answer: list[int], boundaries: Sequence[int], *, overrun: int) -> Text:
    """A text as a server decoded it, whatever this target would have said, with the features along it.

    Past its end it runs on greedily for `overrun` tokens. In lower precision a served text leaves the float32 one at the
    first near-tie; along its own tokens the rounds still compare.
    """
    target.start()
    logits, features = target.extend(torch.tensor(prompt + answer), boundaries, last_logits=len(answer) + 1)
    kept, output = [features], list(answer)
    for _ in range(overrun):
        output.append(int(logits[-1].argmax()))
        logits, features = target.extend(torch.tensor(output[-1:]), boundaries, last_logits=1)
        kept.append(features)
    tokens = prompt + output
    return Text(tokens, len(prompt), len(answer), torch.cat(kept)[: len(tokens) - 1])


def guesses(prompts: Iterable[list[int]], known: Sequence[list[int]]) -> list[list[int]]:
    """For each prompt what follows it in a known conversation; empty where none begins with it."""
    return [next((tokens[len(prompt) :] for tokens in known if tokens[: len(prompt)] == prompt), []) for prompt in prompts]


def _end(output: Sequence[int], max_new_tokens: int, ends: Sequence[int]) -> int:
    """How many tokens a server returns: up to the first end of sequence or the limit (SGLang 0.5.23, schedule_batch.py:2034)."""
    first = next((i + 1 for i, token in enumerate(output) if token in ends), max_new_tokens)
    return min(first, max_new_tokens)


def _common(guessed: Sequence[int], said: Sequence[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(guessed, said, strict=False)) if a != b), len(guessed))
