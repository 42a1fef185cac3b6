"""The slot bookkeeping against what each function says it does, on numbers that can be followed by eye."""

import torch
from draftproof_sglang.cpu import slots

REQ_TO_TOKEN = torch.tensor([[0] * 8, [10, 11, 12, 13, 14, 15, 16, 17], [20, 22, 21, 23, 24, 25, 27, 26]], dtype=torch.int32)
ROWS = torch.tensor([2, 1])


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values)


def test_assign_req_to_token_pool_writes_each_range_and_nothing_else() -> None:
    table = REQ_TO_TOKEN.clone()
    slots.assign_req_to_token_pool_cpu(ROWS, table, ints(1, 5), ints(3, 6), ints(90, 91, 92), 8)
    assert table[2].tolist() == [20, 90, 91, 23, 24, 25, 27, 26]
    assert table[1].tolist() == [10, 11, 12, 13, 14, 92, 16, 17]
    assert table[0].tolist() == [0] * 8


def test_assign_extend_cache_locs_concatenates_the_ranges_and_skips_empty_ones() -> None:
    out = torch.full((5,), -1)
    slots.assign_extend_cache_locs_cpu(ints(2, 0, 1), REQ_TO_TOKEN, ints(1, 4, 0), ints(4, 4, 2), out, 8)
    assert out.tolist() == [22, 21, 23, 10, 11]


def test_assign_draft_cache_locs_takes_topk_times_steps_from_the_length_on() -> None:
    out = torch.full((8,), -1)
    slots.assign_draft_cache_locs_contiguous_cpu(ROWS, REQ_TO_TOKEN, ints(3, 2), out, 8, 2, 2)
    assert out.tolist() == [23, 24, 25, 27, 12, 13, 14, 15]


def test_copy_all_layer_kv_cache_moves_rows_in_every_buffer_also_where_they_overlap() -> None:
    buffers = [torch.arange(24.0).view(6, 2, 2), torch.arange(100, 112, dtype=torch.bfloat16).view(6, 2)]
    before = [buffer.clone() for buffer in buffers]
    addresses = torch.tensor([buffer.data_ptr() for buffer in buffers]).view(torch.int64)
    row_bytes = torch.tensor([buffer[0].nbytes for buffer in buffers])
    slots.copy_all_layer_kv_cache_cpu(addresses, row_bytes, ints(1, 2, 3), ints(2, 3, 5))
    for buffer, old in zip(buffers, before, strict=True):
        assert torch.equal(buffer[1:4], old[[2, 3, 5]])
        assert torch.equal(buffer[[0, 4, 5]], old[[0, 4, 5]])


def test_fill_bonus_tokens_takes_the_last_accepted_of_each() -> None:
    bonus = torch.zeros(2, dtype=torch.int64)
    slots.fill_bonus_tokens_cpu(torch.tensor([[5, 6, 7], [8, 9, 4]], dtype=torch.int32), torch.tensor([3, 1], dtype=torch.int32), bonus, 3)
    assert bonus.tolist() == [7, 8]


def test_fill_accept_out_cache_loc_packs_what_was_accepted() -> None:
    out = torch.zeros(3, dtype=torch.int64)
    slots.fill_accept_out_cache_loc_cpu(torch.tensor([[0, 2, -1], [3, -1, -1]], dtype=torch.int32), ints(40, 41, 42, 43), out)
    assert out.tolist() == [40, 42, 43]


def test_rotate_input_ids_shifts_each_request() -> None:
    ids = ints(1, 2, 3, 4, 5)
    slots.rotate_input_ids_cpu(ids, ints(0, 3, 3), ints(3, 0, 2), torch.tensor([[7], [8], [9]]))
    assert ids.tolist() == [2, 3, 7, 5, 9]
    ids = ints(1, 2, 3)
    slots.rotate_input_ids_cpu(ids, ints(0), ints(3), torch.tensor([[7]]), ints(1))
    assert ids.tolist() == [2, 7, 3]
