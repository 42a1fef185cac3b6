"""The standalone forward against speculators' own model, and its two memories against each other."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tasks.verify.checkpoint import read_checkpoint
from tasks.verify.drafter import load_drafter
from tasks.verify.memory import Cache
from tests.verify.drafters import FLAG_COMBINATIONS, HIDDEN, VOCAB, random_drafter, speculators_logits, speculators_model

STEPS, LENGTH = 4, 37


@pytest.mark.parametrize("flags", FLAG_COMBINATIONS, ids=lambda flags: "+".join(flags) or "plain")
def test_logits_are_those_of_speculators_at_every_step(tmp_path: Path, tiny_target: Path, flags: dict[str, bool]) -> None:
    model = speculators_model(tiny_target, **flags)
    model.save_pretrained(tmp_path)
    tokens, features = torch.randint(0, VOCAB, (LENGTH,)), torch.randn(LENGTH, 3, HIDDEN)
    expected = speculators_logits(model, tokens, features, STEPS)

    checkpoint = read_checkpoint(tmp_path)
    drafter = load_drafter(checkpoint, model.embed_tokens.weight.detach())
    found = torch.stack([drafter.logits(final)[0] for final in drafter.unroll(tokens[None], features[None], STEPS)])

    assert checkpoint.architecture.form == "speculators"
    for k in range(STEPS):
        valid = LENGTH - 1 - k
        assert expected[k, :valid].std() > 0.1
        torch.testing.assert_close(found[k, :valid], expected[k, :valid], atol=1e-5, rtol=1e-5)


def test_a_batch_gives_what_single_sequences_give(tmp_path: Path) -> None:
    drafter = load_drafter(read_checkpoint(random_drafter(tmp_path)), torch.randn(VOCAB, HIDDEN))
    tokens, features = torch.randint(0, VOCAB, (2, LENGTH)), torch.randn(2, LENGTH, 3, HIDDEN)
    both = list(drafter.unroll(tokens, features, STEPS))
    for i, length in enumerate((LENGTH, 20)):
        alone = drafter.unroll(tokens[i : i + 1, :length], features[i : i + 1, :length], STEPS)
        for k, final in enumerate(alone):
            torch.testing.assert_close(final[0, : length - 1 - k], both[k][i, : length - 1 - k], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("window", [None, 6])
def test_unrolled_steps_are_those_of_decoding_with_a_cache(tmp_path: Path, window: int | None) -> None:
    drafter = load_drafter(read_checkpoint(random_drafter(tmp_path)), torch.randn(VOCAB, HIDDEN)).changed(attention_window=window)
    tokens, features = torch.randint(0, VOCAB, (1, LENGTH)), torch.randn(1, LENGTH, 3, HIDDEN)
    unrolled = list(drafter.unroll(tokens, features, STEPS, serving=True))
    for j in (0, 3, 17, LENGTH - STEPS - 2):
        cache = Cache(window)
        positions = torch.arange(j + 1)[None]
        final, hidden = drafter.step(tokens[:, 1 : j + 2], drafter.hidden(features[:, : j + 1]), positions, cache)
        for k in range(STEPS):
            torch.testing.assert_close(final[0, -1], unrolled[k][0, j], atol=1e-5, rtol=1e-5)
            final, hidden = drafter.step(tokens[:, j + 2 + k, None], hidden[:, -1:], torch.tensor([[j + 1 + k]]), cache)


def test_a_constant_shift_of_all_positions_changes_nothing(tmp_path: Path) -> None:
    drafter = load_drafter(read_checkpoint(random_drafter(tmp_path)), torch.randn(VOCAB, HIDDEN))
    tokens, features = torch.randint(0, VOCAB, (1, LENGTH)), torch.randn(1, LENGTH, 3, HIDDEN)
    for trained, served in zip(drafter.unroll(tokens, features, STEPS), drafter.unroll(tokens, features, STEPS, serving=True), strict=True):
        torch.testing.assert_close(trained, served, atol=1e-4, rtol=1e-4)
