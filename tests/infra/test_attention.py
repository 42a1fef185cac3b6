"""Attention over cache rows against attention written out, for every kind of span and every way the slots may lie."""

import math

import pytest
import torch
from draftproof_sglang.cpu import rows
from draftproof_sglang.cpu.attention import attend
from draftproof_sglang.cpu.rows import Rows, Span, causal_spans, tree_span

HEADS, SHARED, SIZE, CACHE = 6, 2, 8, 700
SCALE = 0.3
LAYOUTS = {
    "contiguous": lambda n: torch.arange(40, 40 + n),
    "two runs": lambda n: torch.cat([torch.arange(300, 300 + n // 2), torch.arange(10, 10 + n - n // 2)]),
    "reversed": lambda n: torch.arange(40 + n, 40, -1),
    "scattered": lambda n: torch.randperm(CACHE)[:n],
}


def plainly(query_TQD: torch.Tensor, key_NHD: torch.Tensor, value_NHD: torch.Tensor, visible_TN: torch.Tensor) -> torch.Tensor:
    """One query and one head at a time, in float64."""
    out = torch.zeros(query_TQD.shape, dtype=torch.float64)
    for t, query_QD in enumerate(query_TQD.double()):
        for head, query in enumerate(query_QD):
            shared = head // (HEADS // SHARED)
            scores = [
                float(query @ key[shared].double()) * SCALE if see else -math.inf for key, see in zip(key_NHD, visible_TN[t], strict=True)
            ]
            weights = torch.softmax(torch.tensor(scores, dtype=torch.float64), 0)
            out[t, head] = sum(weight * value[shared].double() for weight, value in zip(weights, value_NHD, strict=True))
    return out


def by_spans(spans: list[Span], query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    out = torch.full_like(query, math.nan)
    for span in spans:
        bias = span.bias(HEADS // SHARED, query.dtype)
        attended = attend(query[span.queries], span.rows.read(keys), span.rows.read(values), bias, SCALE)
        out[span.queries] = attended.view(-1, HEADS, SIZE)
    return out


@pytest.fixture
def cache() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(CACHE, SHARED, SIZE), torch.randn(CACHE, SHARED, SIZE)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("total", "queries"), [(1, 1), (33, 1), (33, 4), (20, 20)])
def test_causal(layout: str, total: int, queries: int, cache: tuple[torch.Tensor, torch.Tensor]) -> None:
    slots = LAYOUTS[layout](total)
    query = torch.randn(queries, HEADS, SIZE)
    visible = torch.ones(queries, total, dtype=torch.bool).tril_(total - queries)
    expected = plainly(query, cache[0][slots], cache[1][slots], visible)
    assert (by_spans(causal_spans(0, slots.int(), queries), query, *cache).double() - expected).abs().max() < 1e-6


def test_a_long_extend_in_pieces_is_the_same_as_in_one(monkeypatch: pytest.MonkeyPatch, cache: tuple[torch.Tensor, torch.Tensor]) -> None:
    slots, query = LAYOUTS["two runs"](60), torch.randn(50, HEADS, SIZE)
    whole = by_spans(causal_spans(0, slots, 50), query, *cache)
    monkeypatch.setattr(rows, "SPAN_QUERIES", 7)
    pieces = causal_spans(0, slots, 50)
    assert [span.queries.stop - span.queries.start for span in pieces] == [7] * 7 + [1]
    assert (by_spans(pieces, query, *cache) - whole).abs().max() < 1e-6


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tree(layout: str, cache: tuple[torch.Tensor, torch.Tensor]) -> None:
    slots, query = LAYOUTS[layout](15), torch.randn(4, HEADS, SIZE)
    tree = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]], dtype=torch.bool)
    visible = torch.cat([torch.ones(4, 11, dtype=torch.bool), tree], dim=1)
    expected = plainly(query, cache[0][slots], cache[1][slots], visible)
    assert (by_spans([tree_span(0, slots, tree)], query, *cache).double() - expected).abs().max() < 1e-6


def test_a_batch_of_unlike_spans(cache: tuple[torch.Tensor, torch.Tensor]) -> None:
    layouts = [LAYOUTS["contiguous"](9), LAYOUTS["scattered"](31), LAYOUTS["two runs"](5)]
    query = torch.randn(9, HEADS, SIZE)
    spans, expected, at = [], [], 0
    for slots, queries in zip(layouts, (2, 3, 4), strict=True):
        visible = torch.ones(queries, len(slots), dtype=torch.bool).tril_(len(slots) - queries)
        spans += causal_spans(at, slots, queries)
        expected.append(plainly(query[at : at + queries], cache[0][slots], cache[1][slots], visible))
        at += queries
    assert (by_spans(spans, query, *cache).double() - torch.cat(expected)).abs().max() < 1e-6


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_read_what_they_wrote(layout: str, cache: tuple[torch.Tensor, torch.Tensor]) -> None:
    buffer, new = cache[0].clone(), torch.randn(12, SHARED, SIZE)
    slots = LAYOUTS[layout](12)
    at = Rows.at(slots.int())
    assert (at.index is None) == (layout == "contiguous")
    at.write(buffer, new)
    assert torch.equal(at.read(buffer), new)
    others = torch.ones(CACHE, dtype=torch.bool).index_fill_(0, slots, False)
    assert torch.equal(buffer[others], cache[0][others])


def test_contiguous_rows_are_a_view(cache: tuple[torch.Tensor, torch.Tensor]) -> None:
    assert Rows.at(torch.arange(3, 9)).read(cache[0]).data_ptr() == cache[0][3].data_ptr()


def test_no_rows() -> None:
    assert len(Rows.at(torch.arange(0)).read(torch.zeros(4, 1, 1))) == 0
