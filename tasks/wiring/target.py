"""What the proof needs of a target: its forward, with features at any boundary. `tasks.target` provides one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch


class TargetFacts(Protocol):
    """Sizes of the target, and its `model_type` (which family of `tasks.wiring.families` it is), as its config says them."""

    @property
    def hidden_size(self) -> int: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def num_layers(self) -> int: ...

    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...

    @property
    def model_type(self) -> str: ...

    @property
    def rope_theta(self) -> float | None:
        """None where its kind of RoPE cannot be compared with a drafter's."""


class TargetForward(Protocol):
    """A target that decodes one sequence, float32 results on the CPU whatever it computes in.

    Shapes: T new tokens, V vocabulary, L layers, H hidden size, n boundaries.
    """

    @property
    def facts(self) -> TargetFacts: ...

    def start(self) -> None:
        """Forget the sequence: the next `extend` begins a new one."""

    def extend(
        self, tokens_T: torch.Tensor, boundaries: Sequence[int], last_logits: int | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append int64 tokens; return logits [T or last_logits, V] and features [T, n, H], in the order of `boundaries`.

        Boundary k in 0..L is the residual stream after k decoder blocks; L is taken BEFORE the final norm.
        """

    def crop(self, length: int) -> None:
        """Keep the first `length` tokens of the sequence."""

    def norm(self, last_state_TH: torch.Tensor) -> torch.Tensor:
        """Final norm of last states (boundary L): [T, H]."""

    def head(self, last_state_TH: torch.Tensor) -> torch.Tensor:
        """Final norm and head of last states (boundary L): logits [T, V]."""

    def embedding(self) -> torch.Tensor:
        """The input embedding, [V, H], float32."""
