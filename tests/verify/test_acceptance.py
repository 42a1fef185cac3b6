"""The simulation against decoding done literally, round by round."""

from __future__ import annotations

from copy import copy
from pathlib import Path

import pytest
import torch

from tasks.verify import tree
from tasks.verify.acceptance import play, predict, right_drafts
from tasks.verify.checkpoint import read_checkpoint
from tasks.verify.drafter import Drafter, load_drafter
from tasks.verify.greedy import given_text, greedy_text, guesses
from tasks.verify.memory import Cache
from tests.verify.drafters import BOUNDARIES, DRAFT_VOCAB, HIDDEN, VOCAB, config, tensors, write
from tests.verify.targets import Facts, PlainTarget

LONGEST = 4


class Counter:
    """A target whose next token is the last one plus 1 (mod V): its features say which token it saw."""

    def __init__(self, ends: tuple[int, ...] = ()) -> None:
        self.facts = Facts(HIDDEN, VOCAB, 6, ends, "llama", None)
        self.tokens: list[int] = []

    def start(self) -> None:
        self.tokens = []

    def extend(self, tokens_T: torch.Tensor, boundaries: list[int], last_logits: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        self.tokens += tokens_T.tolist()
        logits = torch.nn.functional.one_hot((tokens_T + 1) % VOCAB, VOCAB).float()
        noise = torch.randn(VOCAB, len(boundaries), HIDDEN, generator=torch.Generator().manual_seed(0))
        return logits[-(last_logits or len(tokens_T)) :], noise[tokens_T]

    def crop(self, length: int) -> None:
        self.tokens = self.tokens[:length]


def literal(drafter: Drafter, target: PlainTarget | Counter, prompt: list[int], steps: int, limit: int) -> tuple[list[int], list[int]]:
    """Rounds as SGLang 0.5.23 runs them: prefill, draft extend, draft, verify; the output, and right drafts per round."""
    target.start()
    logits, features = target.extend(torch.tensor(prompt), BOUNDARIES, 1)
    output, rounds, cache = [int(logits[-1].argmax())], [], Cache()
    fresh, position = [*prompt[1:], output[0]], 0
    while len(output) < limit and not set(output) & set(target.facts.eos_token_ids):
        positions = torch.arange(position, position + len(fresh))[None]
        final, hidden = drafter.step(torch.tensor([fresh]), drafter.hidden(features[None]), positions, cache)
        position += len(fresh)
        drafts: list[int] = []
        for k in range(steps):
            drafts.append(int(drafter.target_ids_V[drafter.logits(final[0, -1]).argmax()]))
            final, hidden = drafter.step(torch.tensor([[drafts[-1]]]), hidden[:, -1:], torch.tensor([[position + k]]), cache)
        cache.crop(position)
        committed = len(prompt) + len(output) - 1
        logits, features = target.extend(torch.tensor([output[-1], *drafts]), BOUNDARIES)
        said = logits.argmax(-1).tolist()
        right = next((i for i, (a, b) in enumerate(zip(drafts, said, strict=False)) if a != b), steps)
        rounds.append(right)
        fresh, features = said[: right + 1], features[: right + 1]
        output += fresh
        target.crop(committed + right + 1)
    end = next((i + 1 for i, token in enumerate(output) if token in target.facts.eos_token_ids), limit)
    return output[: min(end, limit)], rounds


@pytest.fixture(scope="module")
def half_right(tmp_path_factory: pytest.TempPathFactory) -> Drafter:
    """Fitted to the counting target, with a draft vocabulary of less than half of its tokens: right there, wrong beyond."""
    settings = config()
    weights = {**tensors(settings), "d2t": torch.zeros(DRAFT_VOCAB, dtype=torch.int64)}
    folder = write(tmp_path_factory.mktemp("drafter"), settings, weights)
    drafter = load_drafter(read_checkpoint(folder), torch.randn(VOCAB, HIDDEN, generator=torch.Generator().manual_seed(0)))
    fit(drafter, Counter())
    return drafter


def fit(drafter: Drafter, target: Counter, steps: int = 200) -> None:
    names = ("fc.weight", "lm_head.weight", "layers.0.mlp.down_proj.weight", "layers.0.self_attn.o_proj.weight")
    parameters = [drafter.weights[name].requires_grad_() for name in names]
    optimizer = torch.optim.Adam(parameters, lr=1e-2)
    for i in range(steps):
        tokens = (torch.arange(24) + 7 * i) % DRAFT_VOCAB
        target.start()
        features = target.extend(tokens, BOUNDARIES)[1]
        loss = torch.zeros(())
        for k, final in enumerate(drafter.unroll(tokens[None], features[None], 3)):
            n = len(tokens) - 2 - k
            loss = loss + torch.nn.functional.cross_entropy(drafter.logits(final[0, :n]), tokens[2 + k :])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for parameter in parameters:
        parameter.requires_grad_(False)


@pytest.mark.parametrize("limit", [1, 2, 11, 30])
@pytest.mark.parametrize("ends", [(), (9,), (0,)])
def test_every_draft_length_is_what_literal_decoding_counts(half_right: Drafter, limit: int, ends: tuple[int, ...]) -> None:
    target, seen = Counter(ends), set()
    for first in range(0, VOCAB, 11):
        prompt = [(first + i) % VOCAB for i in range(5)]
        text = greedy_text(target, prompt, BOUNDARIES, max_new_tokens=limit, overrun=LONGEST)
        right = right_drafts(half_right, text, LONGEST)
        seen |= set(right)
        for steps in range(1, LONGEST + 1):
            output, rounds = literal(half_right, target, prompt, steps, limit)
            counts = play(right, text.output_tokens, steps)
            assert text.tokens[5 : 5 + text.output_tokens] == output
            assert counts.histogram == [rounds.count(i) for i in range(steps + 1)]
            assert (counts.output_tokens, counts.verify_rounds) == (len(output), len(rounds))
    assert limit < 11 or {0, LONGEST} < seen, "the drafter must be right sometimes and wrong sometimes, or nothing is shown"


def test_a_real_target_gives_the_same_text_guessed_or_not(tiny_target: Path) -> None:
    target, prompt = PlainTarget(tiny_target), [7, 8, 9, 10]
    plain = greedy_text(target, prompt, BOUNDARIES, max_new_tokens=12, overrun=3)
    answer = plain.tokens[4:]
    for guess in (answer, answer[:5] + [3] * 9, [3] * 20):
        text = greedy_text(target, prompt, BOUNDARIES, max_new_tokens=12, overrun=3, guess=guess)
        assert (text.tokens, text.output_tokens) == (plain.tokens, plain.output_tokens)
        torch.testing.assert_close(text.features_SnH, plain.features_SnH, atol=1e-4, rtol=1e-4)
    assert len(plain.features_SnH) == len(plain.tokens) - 1


def test_a_guess_is_what_follows_the_prompt_in_a_known_conversation() -> None:
    assert guesses([[1, 2], [4]], [[1, 2, 3, 4], [9]]) == [[3, 4], []]


def test_the_totals_are_the_sums_of_the_prompts(half_right: Drafter) -> None:
    target = Counter()
    texts = [greedy_text(target, [i, i + 1], BOUNDARIES, max_new_tokens=20, overrun=2) for i in range(0, 60, 9)]
    for prediction in predict(half_right, texts, [2, 1]):
        assert prediction.verify_rounds == sum(prompt.verify_rounds for prompt in prediction.per_prompt) == sum(prediction.histogram)
        assert prediction.accept_length.value == pytest.approx(1 + prediction.right_drafts / prediction.verify_rounds)
        assert 1 <= prediction.accept_length.value <= prediction.steps + 1
    assert [prediction.steps for prediction in predict(half_right, texts, [2, 1])] == [1, 2]


def test_a_tree_of_one_branch_is_a_chain(half_right: Drafter) -> None:
    target = Counter()
    text = greedy_text(target, [3, 4, 5], BOUNDARIES, max_new_tokens=30, overrun=LONGEST)
    chain = right_drafts(half_right, text, LONGEST)
    for steps in range(1, LONGEST + 1):
        found, near = tree.right_drafts(half_right, text, tree.Shape(steps, 1, steps + 1))
        assert found == [min(right, steps) for right in chain] and not any(near)


@pytest.mark.parametrize("shape", [tree.Shape(1, 3, 4), tree.Shape(2, 2, 4), tree.Shape(3, 4, 8), tree.Shape(4, 2, 6)])
def test_every_position_at_once_is_what_literal_tree_decoding_counts(half_right: Drafter, shape: tree.Shape) -> None:
    target, seen = Counter(), set()
    for first in range(0, VOCAB, 11):
        prompt = [(first + i) % VOCAB for i in range(5)]
        text = greedy_text(target, prompt, BOUNDARIES, max_new_tokens=24, overrun=shape.steps)
        found, _ = tree.right_drafts(half_right, text, shape)
        literal = [literal_tree(half_right, target, text.tokens, text.prompt_length - 1 + n, shape) for n in range(1, text.output_tokens)]
        assert found == literal
        seen |= set(found)
    assert {0, shape.steps} <= seen, "the drafter must be right sometimes and wrong sometimes, or nothing is shown"


def literal_tree(drafter: Drafter, target: Counter, tokens: list[int], committed: int, shape: tree.Shape) -> int:
    """One round of SGLang's tree, drafted branch by branch, each branch with the cache of its slot; right drafts of the walk."""
    target.start()
    features = target.extend(torch.tensor(tokens[:committed]), BOUNDARIES)[1]
    fresh, cache = tokens[1 : committed + 1], Cache()
    final, hidden = drafter.step(torch.tensor([fresh]), drafter.hidden(features[None]), torch.arange(committed)[None], cache)
    caches = [copy(cache) for _ in range(shape.topk)]
    best = drafter.logits(final[0, -1]).softmax(-1).topk(shape.topk)
    states = [hidden[:, -1:]] * shape.topk
    # A path: the tokens from the root, and its likelihood.
    branches = [((int(drafter.target_ids_V[i]),), p) for p, i in zip(best.values, best.indices, strict=True)]
    everything = list(branches)
    for step in range(1, shape.steps):
        grown = []
        for slot, (path, chance) in enumerate(branches):
            position = torch.tensor([[committed + step - 1]])
            final, states[slot] = drafter.step(torch.tensor([[path[-1]]]), states[slot], position, caches[slot])
            best = drafter.logits(final[0, -1]).softmax(-1).topk(shape.topk)
            grown += [(slot, (*path, int(drafter.target_ids_V[i])), chance * p) for p, i in zip(best.values, best.indices, strict=True)]
        everything += [(path, chance) for _, path, chance in grown]
        likeliest = sorted(grown, key=lambda g: -float(g[2]))[: shape.topk]
        states = [states[slot] for slot, _, _ in likeliest]
        branches = [(path, chance) for _, path, chance in likeliest]
    chosen = {path for path, _ in sorted(everything, key=lambda e: -float(e[1]))[: shape.draft_tokens - 1]}
    future = tuple(tokens[committed + 1 : committed + 1 + shape.steps])
    return max((n for n in range(1, shape.steps + 1) if future[:n] in chosen), default=0)


def test_a_text_of_somebody_else_is_followed_as_it_is(tiny_target: Path) -> None:
    target, prompt = PlainTarget(tiny_target), [7, 8, 9, 10]
    own = greedy_text(target, prompt, BOUNDARIES, max_new_tokens=12, overrun=3)
    same = given_text(target, prompt, own.tokens[4 : 4 + own.output_tokens], BOUNDARIES, overrun=3)
    assert (same.tokens, same.output_tokens) == (own.tokens, own.output_tokens)
    torch.testing.assert_close(same.features_SnH, own.features_SnH, atol=1e-4, rtol=1e-4)
    other = given_text(target, prompt, [3, 4, 5], BOUNDARIES, overrun=2)
    assert other.tokens[:7] == [7, 8, 9, 10, 3, 4, 5] and len(other.tokens) == 9 and other.output_tokens == 3
    assert len(other.features_SnH) == len(other.tokens) - 1
