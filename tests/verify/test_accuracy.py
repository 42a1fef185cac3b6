"""Accuracy is counted as speculators counts it; and only the planted boundaries give it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tasks.products import StepCounts
from tasks.verdict import Outcome
from tasks.verify import accuracy
from tasks.verify.checkpoint import read_checkpoint
from tasks.verify.drafter import load_drafter
from tasks.verify.hypotheses import boundary_lists
from tasks.verify.results import HeldOut
from tests.verify.drafters import BOUNDARIES, DRAFT_VOCAB, VOCAB, speculators_model
from tests.verify.targets import PlainTarget

STEPS, TIE = 3, 1e-4


def library_counts(model: Any, row: HeldOut, features: torch.Tensor, last: torch.Tensor) -> list[tuple[int, int]]:
    """(right, positions) per step, from the library's own forward and metrics."""
    from speculators.losses import resolve_loss_config

    mask = torch.zeros(len(row.tokens), dtype=torch.bool)
    for start, stop in row.spans:
        mask[start:stop] = True
    with torch.no_grad():
        _, _, metrics = model(
            hidden_states=features[None, :-1].flatten(2),
            input_ids=torch.tensor(row.tokens)[None, 1:],
            document_ids=torch.zeros(1, len(row.tokens) - 1, dtype=torch.long),
            loss_mask=mask[None, 1:],
            verifier_last_hidden_states=last[None, 1:],
            ttt_steps=STEPS,
            loss_config=resolve_loss_config("kl_div", "eager"),
        )
    return [(int(metrics[f"full_acc_{k}_sum"]), int(metrics[f"full_acc_{k}_total"])) for k in range(STEPS)]


def test_counts_are_those_of_the_library(tmp_path: Path, tiny_target: Path) -> None:
    model, target = speculators_model(tiny_target), PlainTarget(tiny_target)
    # A head that copies the target's own makes a random drafter right often enough to count something.
    model.lm_head.weight.data = model.verifier_lm_head.weight.data.clone()
    model.save_pretrained(tmp_path)
    drafter = load_drafter(read_checkpoint(tmp_path), target.embedding())
    library, ours = [], []
    for seed in range(12):
        tokens = torch.randint(0, VOCAB, (60,), generator=torch.Generator().manual_seed(seed)).tolist()
        row = HeldOut(id=str(seed), tokens=tokens, spans=[(10, 25), (40, 60)])
        target.start()
        states = target.extend(torch.tensor(tokens), [*BOUNDARIES, target.facts.num_layers])[1]
        library.append(library_counts(model, row, states[:, :-1], states[:, -1]))
        ours.append(accuracy.count(drafter, target, row, states[:, :-1], states[:, -1], STEPS, TIE))
    steps, outside = accuracy.total(ours)
    expected = [tuple(map(sum, zip(*(row[k] for row in library), strict=True))) for k in range(STEPS)]
    assert [(step.right, step.positions) for step in steps] == expected
    assert 0 < steps[0].right_full <= steps[0].right
    assert steps[0].accuracy.low < steps[0].accuracy.value < steps[0].accuracy.high
    assert outside.value == pytest.approx(1 - DRAFT_VOCAB / VOCAB, abs=0.15)

    trainer = [StepCounts(right=right, positions=positions) for right, positions in expected]
    assert accuracy.judge(steps, trainer).verdict is Outcome.PASS
    off = [trainer[0].model_copy(update={"right": trainer[0].right + steps[0].near_ties + 1}), *trainer[1:]]
    assert accuracy.judge(steps, off).verdict is Outcome.FAIL
    assert accuracy.judge(steps, trainer[:2]).verdict is Outcome.PASS
    assert accuracy.judge(steps[:2], trainer).verdict is Outcome.INVALID


PLANTED, SIZE, LAYERS = [0, 3, 6], 16, 12


class PlantedShares:
    """A target whose boundaries each hold a random share, turned by its own orthogonal matrix; those planted sum to the label."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.turns = [torch.linalg.qr(torch.randn(SIZE, SIZE, generator=generator)).Q for _ in range(LAYERS + 1)]

    def features(self, tokens: torch.Tensor, boundaries: Sequence[int]) -> torch.Tensor:
        generator = torch.Generator().manual_seed(int(tokens.sum()))
        shares = torch.randint(0, SIZE, (LAYERS + 1, len(tokens)), generator=generator)
        label = torch.cat([tokens[2:], tokens[:2]])
        shares[PLANTED[-1]] = (label - shares[PLANTED[:-1]].sum(0)) % SIZE
        return torch.stack([torch.eye(SIZE)[shares[b]] @ self.turns[b] for b in boundaries], 1)

    def head(self, last: torch.Tensor) -> torch.Tensor:
        return last


class Oracle:
    """A drafter that turns each feature back as if it came from the planted boundary, and sums the shares."""

    target_ids_V = torch.arange(SIZE)

    def __init__(self, target: PlantedShares) -> None:
        self.turns = [target.turns[b] for b in PLANTED]

    def unroll(self, tokens_BS: torch.Tensor, features_BSnH: torch.Tensor, steps: int) -> Iterator[torch.Tensor]:
        shares = [(features_BSnH[0, :-1, i] @ turn.T).argmax(-1) for i, turn in enumerate(self.turns)]
        yield torch.eye(SIZE)[sum(shares) % SIZE][None]

    def logits(self, final: torch.Tensor) -> torch.Tensor:
        return final


def planted_accuracy(fed: Sequence[int]) -> float:
    target = PlantedShares()
    counts = []
    for seed in range(8):
        tokens = torch.randint(0, SIZE, (100,), generator=torch.Generator().manual_seed(seed))
        # What the target says after token i is token i+1.
        said = torch.eye(SIZE)[torch.cat([tokens[1:], tokens[:1]])]
        row = HeldOut(id="", tokens=tokens.tolist(), spans=[(4, 99)])
        drafter: Any = Oracle(target)
        counts.append(accuracy.count(drafter, SimpleNamespace(head=target.head), row, target.features(tokens, fed), said, 1, TIE))  # type: ignore[arg-type]
    return accuracy.total(counts)[0][0].accuracy.value


def test_planted_shares_are_decoded_from_the_planted_boundaries_alone() -> None:
    assert planted_accuracy(PLANTED) == 1.0
    for name, fed in {**boundary_lists(PLANTED, LAYERS), "facts/faults.md": [3, 6, 9], "permuted": [3, 0, 6]}.items():
        assert planted_accuracy(fed) < 0.2, name
