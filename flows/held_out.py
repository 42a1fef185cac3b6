"""Held-out conversations as verification and benchmark want them, read from the products when they are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, overload

from tasks.products import CaptureProduct, Conversation, DataProduct
from tasks.verdict import BadInput

if TYPE_CHECKING:
    from tasks.verify import HeldOut


def held_out_conversations(data: DataProduct) -> list[tuple[int, Conversation]]:
    """(row, conversation): a row is a line of conversations.jsonl, as in `CaptureProduct`."""
    with data.conversations.open(encoding="utf-8") as lines:
        everything = enumerate(map(Conversation.model_validate_json, lines))
        return [(row, conversation) for row, conversation in everything if conversation.split == "held_out"]


def held_out_prompts(data: DataProduct, count: int, *, longest: int) -> list[list[int]]:
    """Token ids of the first `count` held-out prompts of at most `longest` tokens. Raises BadInput when there is none."""
    prompts = [c.tokens[: c.prompt_length] for _, c in held_out_conversations(data) if c.prompt_length <= longest]
    if not prompts:
        raise BadInput(
            "benchmark.output_tokens",
            found=f"no held-out prompt of at most {longest} tokens",
            expected="prompts that fit into deploy.context_length with the answer",
            do="Lower benchmark.output_tokens, or raise deploy.context_length.",
        )
    return prompts[:count]


class HeldOutRows(Sequence["HeldOut"]):
    """The held-out conversations with their captured features; one is in memory at a time."""

    def __init__(self, data: DataProduct, capture: CaptureProduct) -> None:
        self._rows = held_out_conversations(data)
        self._folder = capture.folder / "hidden_states"

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> HeldOut: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[HeldOut]: ...

    def __getitem__(self, index: int | slice) -> HeldOut | Sequence[HeldOut]:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        from safetensors.torch import load_file

        from tasks.verify import HeldOut

        row, conversation = self._rows[index]
        states_SnH = load_file(self._folder / f"hs_{row}.safetensors")["hidden_states"]
        return HeldOut(
            id=conversation.id,
            tokens=conversation.tokens,
            spans=conversation.spans,
            features_SnH=states_SnH[:, :-1],
            last_state_SH=states_SnH[:, -1],
        )
