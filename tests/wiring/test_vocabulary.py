"""The vocabulary map: offsets, not ids."""

from __future__ import annotations

import pytest
import torch

from tasks.verdict import Outcome
from tasks.wiring.vocabulary import check_map, hash_of, offsets, target_ids, vocab_map

V, IDS = 100, torch.tensor([0, 1, 2, 7, 8, 20, 21, 22, 23, 40, 41, 42, 43, 60, 61, 70, 80, 90, 98, 99])
T2D = torch.zeros(V, dtype=torch.bool).index_fill(0, IDS, True)


def test_offsets_and_ids_are_each_others_inverse() -> None:
    assert torch.equal(target_ids(offsets(IDS)), IDS)
    assert offsets(IDS)[:4].tolist() == [0, 0, 0, 4]


@pytest.mark.parametrize("t2d", [None, T2D])
@pytest.mark.parametrize("ids", [IDS, torch.arange(20), torch.arange(80, 100)], ids=["spread", "identity", "last"])
def test_a_right_map_passes(ids: torch.Tensor, t2d: torch.Tensor | None) -> None:
    marked = None if t2d is None else torch.zeros(V, dtype=torch.bool).index_fill(0, ids, True)
    assert check_map(offsets(ids), target_size=V, t2d_V=marked).verdict is Outcome.PASS


@pytest.mark.parametrize(
    ("d2t", "t2d", "says"),
    [
        (IDS, T2D, "d2t holds target ids"),
        (IDS, None, "d2t holds target ids"),
        (torch.arange(20), torch.zeros(V, dtype=torch.bool).index_fill(0, torch.arange(20), True), "target ids"),
        (torch.zeros(20, dtype=torch.int64), T2D, "disagree"),
        (offsets(IDS).flip(0), T2D, "does not increase"),
        (offsets(IDS) + 1, None, "in range"),
        (offsets(IDS) - 1, None, "in range"),
        (offsets(IDS) + torch.tensor([0] * 10 + [1] + [0] * 9), None, "does not increase at 1"),
        (offsets(IDS).roll(1), T2D, "does not increase"),
        (offsets(IDS).float(), None, "one integer offset"),
        (torch.zeros(0, dtype=torch.int64), None, "one integer offset"),
        (offsets(IDS), T2D[:-1], "t2d has shape"),
        (offsets(IDS), T2D.roll(1), "disagree"),
    ],
)
def test_a_wrong_map_is_named(d2t: torch.Tensor, t2d: torch.Tensor | None, says: str) -> None:
    check = check_map(d2t, target_size=V, t2d_V=t2d)
    assert (check.verdict, check.kind) == (Outcome.FAIL, "vocab-map")
    assert says in check.message


def test_the_hash_is_of_the_target_ids() -> None:
    assert vocab_map(offsets(IDS), V).sha256 == hash_of(IDS) != hash_of(IDS.flip(0))
    assert vocab_map(None, 3) == vocab_map(torch.zeros(3, dtype=torch.int64), 3)
