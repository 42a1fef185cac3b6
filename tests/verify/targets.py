"""A target for the proof, straight from transformers: the whole sequence again at each call, so nothing can go stale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True)
class Facts:
    hidden_size: int
    vocab_size: int
    num_layers: int
    eos_token_ids: tuple[int, ...]
    model_type: str
    rope_theta: float | None


class PlainTarget:
    """`tasks.wiring.target.TargetForward` of a Llama folder."""

    def __init__(self, folder: Path) -> None:
        from transformers import LlamaForCausalLM

        self.model: Any = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        config = self.model.config
        sizes = (config.hidden_size, config.vocab_size, config.num_hidden_layers)
        self.facts = Facts(*sizes, (config.eos_token_id,), config.model_type, config.rope_parameters["rope_theta"])
        self._tokens = torch.empty(0, dtype=torch.int64)
        self._last: list[torch.Tensor] = []
        self.model.model.layers[-1].register_forward_hook(
            lambda layer, inputs, output: self._last.append(output if isinstance(output, torch.Tensor) else output[0])
        )

    def start(self) -> None:
        self._tokens = self._tokens[:0]

    @torch.inference_mode()
    def extend(
        self, tokens_T: torch.Tensor, boundaries: Sequence[int], last_logits: int | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        new = len(tokens_T)
        self._tokens = torch.cat([self._tokens, tokens_T])
        self._last.clear()
        out = self.model(self._tokens[None], output_hidden_states=True, use_cache=False)
        states = [*out.hidden_states[:-1], self._last[-1]]
        features = torch.stack([states[b][0, -new:] for b in boundaries], 1)
        return out.logits[0, -(last_logits or new) :], features

    def crop(self, length: int) -> None:
        self._tokens = self._tokens[:length]

    @torch.inference_mode()
    def norm(self, last_state_TH: torch.Tensor) -> torch.Tensor:
        return self.model.model.norm(last_state_TH)

    @torch.inference_mode()
    def head(self, last_state_TH: torch.Tensor) -> torch.Tensor:
        return self.model.lm_head(self.model.model.norm(last_state_TH))

    def embedding(self) -> torch.Tensor:
        return self.model.get_input_embeddings().weight.detach()
