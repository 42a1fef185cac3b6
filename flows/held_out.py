"""Held-out conversations as verification and benchmark want them, read from the products when they are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, overload

from tasks.products import CaptureProduct, DataProduct, feature_file
from tasks.verdict import BadInput

if TYPE_CHECKING:
    from tasks.verify import HeldOut


def held_out_prompts(data: DataProduct, count: int, *, longest: int) -> list[list[int]]:
    """Token ids of the first `count` held-out prompts of at most `longest` tokens. Raises BadInput when there is none."""
    held_out = islice(data.rows(), data.train, None)
    prompts = list(islice((c.tokens[: c.prompt_length] for c in held_out if c.prompt_length <= longest), count))
    if not prompts:
        raise BadInput(
            "benchmark.output_tokens",
            found=f"no held-out prompt of at most {longest} tokens",
            expected="prompts that fit into deploy.context_length with the answer",
            do="Lower benchmark.output_tokens, or raise deploy.context_length.",
        )
    return prompts


class HeldOutRows(Sequence["HeldOut"]):
    """The held-out conversations with their captured features; one is in memory at a time."""

    def __init__(self, data: DataProduct, capture: CaptureProduct) -> None:
        self._conversations, self._first = data.rows(), data.train
        self._folder = capture.folder

    def __len__(self) -> int:
        return len(self._conversations) - self._first

    @overload
    def __getitem__(self, index: int) -> HeldOut: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[HeldOut]: ...

    def __getitem__(self, index: int | slice) -> HeldOut | Sequence[HeldOut]:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        from safetensors.torch import load_file

        from tasks.verify import HeldOut

        row = range(self._first, len(self._conversations))[index]
        conversation = self._conversations[row]
        states_SnH = load_file(feature_file(self._folder, row))["hidden_states"]
        return HeldOut(
            id=conversation.id,
            tokens=conversation.tokens,
            spans=conversation.spans,
            features_SnH=states_SnH[:, :-1],
            last_state_SH=states_SnH[:, -1],
        )
