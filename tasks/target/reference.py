"""The second path to features and logits: transformers as it comes, with its eager attention, one sequence, float32."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import torch

from tasks.device import Placement


class Reference:
    """Implements `tasks.wiring.extraction.SecondPath`. Shares neither attention, cache, batching nor hooks with `Target`."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._body = model.get_decoder()

    @classmethod
    def load(cls, folder: Path, *, device: str = "cpu", trust_remote_code: bool = False) -> Self:
        from tasks.target.model import load_model

        placement = Placement.model_validate({"device": device, "dtype": "float32"})
        return cls(load_model(folder, "eager", placement, trust_remote_code=trust_remote_code))

    @torch.no_grad()
    def features(self, tokens: Sequence[int], boundaries: Sequence[int]) -> torch.Tensor:
        # hidden_states[-1] is normed already (transformers 5.19), so the last boundary is what goes into the final norm.
        last: list[torch.Tensor] = []
        handle = self._body.norm.register_forward_pre_hook(lambda module, args: last.append(args[0]))
        try:
            states = self._body(self._input(tokens), output_hidden_states=True, use_cache=False).hidden_states
        finally:
            handle.remove()
        layers = len(states) - 1
        return torch.stack([(last[0] if b == layers else states[b])[0] for b in boundaries], 1).float().cpu()

    @torch.no_grad()
    def logits(self, tokens: Sequence[int]) -> torch.Tensor:
        logits: torch.Tensor = self._model(self._input(tokens), use_cache=False).logits[0]
        return logits.float().cpu()

    @torch.no_grad()
    def head(self, last_state_SH: torch.Tensor) -> torch.Tensor:
        state = last_state_SH.to(self._model.device, self._model.dtype)
        logits: torch.Tensor = self._model.get_output_embeddings()(self._body.norm(state))
        return logits.float().cpu()

    def _input(self, tokens: Sequence[int]) -> torch.Tensor:
        return torch.tensor([list(tokens)], device=self._model.device)
