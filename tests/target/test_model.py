"""Our fast paths against transformers as it comes."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import pytest
import torch

from tasks.target.model import Target
from tasks.target.reference import Reference

BOUNDARIES = [0, 2, 5, 6]


@pytest.fixture(scope="module")
def target(tiny_target: Path) -> Target:
    loaded = Target.load(tiny_target, device="cpu", dtype="float32")
    # A random model hardly ever ends an answer: let many tokens end one, so that answers differ in length.
    loaded.facts = dataclasses.replace(loaded.facts, eos_token_ids=tuple(range(20)))
    return loaded


@pytest.fixture(scope="module")
def reference(tiny_target: Path) -> Reference:
    return Reference.load(tiny_target)


def prompts(count: int) -> list[list[int]]:
    draw = random.Random(1)
    return [[draw.randrange(6, 86) for _ in range(draw.randrange(2, 20))] for _ in range(count)]


def greedy(reference: Reference, prompt: list[int], new: int, eos: tuple[int, ...]) -> list[int]:
    tokens = list(prompt)
    for _ in range(new):
        tokens.append(int(reference.logits(tokens)[-1].argmax()))
        if tokens[-1] in eos:
            break
    return tokens


def test_extend_gives_what_transformers_gives_in_pieces_and_after_a_crop(target: Target, reference: Reference) -> None:
    tokens = torch.tensor(prompts(1)[0] * 20)[:300]
    target.start()
    pieces = []
    for part in (tokens[:7], tokens[7:8], tokens[8:]):
        pieces.append(target.extend(part, BOUNDARIES))
    logits, features = (torch.cat(parts) for parts in zip(*pieces, strict=True))
    torch.testing.assert_close(logits, reference.logits(tokens.tolist()), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(features, reference.features(tokens.tolist(), BOUNDARIES), atol=1e-4, rtol=1e-4)
    target.crop(8)
    again, _ = target.extend(tokens[8:20], BOUNDARIES, last_logits=3)
    torch.testing.assert_close(again, logits[17:20], atol=1e-4, rtol=1e-4)


def test_head_of_the_last_state_is_the_models_own_logits(target: Target, reference: Reference) -> None:
    tokens = prompts(1)[0]
    last = reference.features(tokens, [6])[:, 0]
    torch.testing.assert_close(target.head(last), reference.logits(tokens), atol=1e-4, rtol=1e-4)


def test_answers_are_the_greedy_ones_and_each_token_has_its_features(target: Target, reference: Reference) -> None:
    asked = prompts(13)
    answers = {a.index: a for a in target.answer(asked, 12, boundaries=BOUNDARIES, batch=4)}
    assert sorted(answers) == list(range(13))
    assert len({len(a.tokens) - len(asked[i]) for i, a in answers.items()}) > 1, "all of one length: refilling was not tried"
    for index, answer in answers.items():
        assert answer.tokens == greedy(reference, asked[index], 12, target.facts.eos_token_ids)
        assert answer.features_SnH is not None
        expected = reference.features(answer.tokens, BOUNDARIES)
        torch.testing.assert_close(answer.features_SnH.float(), expected, atol=2e-2, rtol=1e-2)


def test_answering_twice_gives_the_same_bytes(target: Target) -> None:
    asked = prompts(9)
    first, second = ([(a.index, a.tokens, a.features_SnH) for a in target.answer(asked, 8, boundaries=[2, 6], batch=4)] for _ in range(2))
    for one, other in zip(first, second, strict=True):
        assert one[:2] == other[:2] and one[2] is not None and other[2] is not None and torch.equal(one[2], other[2])


def test_features_of_given_sequences(target: Target, reference: Reference) -> None:
    sequences = prompts(7)
    found = dict(target.features(sequences, BOUNDARIES))
    for index, sequence in enumerate(sequences):
        torch.testing.assert_close(found[index].float(), reference.features(sequence, BOUNDARIES), atol=2e-2, rtol=1e-2)
