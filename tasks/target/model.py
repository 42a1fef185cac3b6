"""A target on transformers: forward with features at any boundary, batched greedy answers, features of given sequences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch

from tasks.device import Placement, place
from tasks.target import attention
from tasks.target.answering import answer_all
from tasks.verdict import BadInput
from tasks.wiring import rope
from tasks.wiring.answering import Answer
from tasks.wiring.families import text_config

_EXTRACT_TOKENS = 4096
"""Padded tokens per batch of `features`: enough to fill two cores, and little memory."""


@dataclass(frozen=True)
class Facts:
    """`tasks.wiring.target.TargetFacts`."""

    hidden_size: int
    vocab_size: int
    num_layers: int
    eos_token_ids: tuple[int, ...]
    model_type: str
    rope_theta: float | None


class Target:
    """Implements `TargetForward`, `AnswerEngine` and `Extractor` of `tasks.wiring`."""

    def __init__(self, model: Any, facts: Facts, placement: Placement) -> None:
        self.facts, self.placement = facts, placement
        self._model = model
        self._body = model.get_decoder()
        self._device = torch.device(placement.device)
        self.dtype: torch.dtype = model.dtype
        self.start()

    @classmethod
    def load(cls, folder: Path, *, device: str = "auto", dtype: str = "auto", trust_remote_code: bool = False) -> Self:
        """From a Hugging Face folder, safetensors only."""
        placement = place(device, dtype)
        model = load_model(folder, attention.NAME, placement, trust_remote_code=trust_remote_code)
        return cls(model, facts_of(model), placement)

    def start(self) -> None:
        self._kv, self._length = attention.KeyValues(self.facts.num_layers, rows=1, columns=256), 0

    @torch.no_grad()
    def extend(
        self, tokens_T: torch.Tensor, boundaries: Sequence[int], last_logits: int | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        past, end = self._length, self._length + len(tokens_T)
        if end > self._kv.columns:
            self._kv.widen(max(end, 2 * self._kv.columns))
        normed, features = self.forward(tokens_T[None], torch.arange(past, end)[None], boundaries, kv=self._kv, past=past)
        self._length = end
        return self._logits(normed[0, -last_logits:] if last_logits else normed[0]).float().cpu(), features[0].float().cpu()

    def crop(self, length: int) -> None:
        self._length = min(length, self._length)

    @torch.no_grad()
    def norm(self, last_state_TH: torch.Tensor) -> torch.Tensor:
        return self._body.norm(last_state_TH.to(self._device, self.dtype)).float().cpu()

    @torch.no_grad()
    def head(self, last_state_TH: torch.Tensor) -> torch.Tensor:
        state = last_state_TH.to(self._device, self.dtype)
        return self._logits(self._body.norm(state)).float().cpu()

    def embedding(self) -> torch.Tensor:
        return self._model.get_input_embeddings().weight.detach().float().cpu()

    def answer(
        self, prompts: Sequence[list[int]], max_new_tokens: int, *, boundaries: Sequence[int] | None = None, batch: int = 64
    ) -> Iterator[Answer]:
        """Greedy answers of at most `max_new_tokens`, `batch` at a time, in the order in which they are finished."""
        return answer_all(self, prompts, max_new_tokens, boundaries=list(boundaries or []), batch=batch)

    @torch.no_grad()
    def features(self, sequences: Sequence[list[int]], boundaries: Sequence[int]) -> Iterator[tuple[int, torch.Tensor]]:
        """(index, bfloat16 [S, n, H] on the CPU) of every sequence, those of similar length at the same time."""
        order = sorted(range(len(sequences)), key=lambda i: len(sequences[i]))
        while order:
            size = max(1, _EXTRACT_TOKENS // len(sequences[order[-1]]))
            group, order = order[-size:], order[:-size]
            tokens, _ = padded([sequences[i] for i in group])
            _, features = self.forward(tokens, torch.arange(tokens.shape[1])[None], boundaries)
            for row, index in enumerate(group):
                yield index, features[row, : len(sequences[index])].to("cpu", torch.bfloat16, copy=True)

    def forward(
        self, tokens_BT: torch.Tensor, positions_BT: torch.Tensor, boundaries: Sequence[int], **attending: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Normed last states [B, T, H] and features [B, T, n, H]; `attending` goes to `tasks.target.attention.attend`."""
        with record(self._body.layers, boundaries) as seen:
            out = self._body(tokens_BT.to(self._device), position_ids=positions_BT.to(self._device), use_cache=False, **attending)
        normed = out.last_hidden_state
        return normed, torch.stack([seen[b] for b in boundaries], 2) if boundaries else normed[:, :, None][:, :, :0]

    def choose(self, normed_BH: torch.Tensor) -> torch.Tensor:
        """The most likely next token of each row, [B]. `max` in float32: on a CPU (torch 2.14) 4 times as fast as `argmax` in bfloat16."""
        return self._logits(normed_BH).float().max(-1).indices

    def _logits(self, normed: torch.Tensor) -> torch.Tensor:
        return self._model.get_output_embeddings()(normed)


def load_model(folder: Path, attention_name: str, placement: Placement, *, trust_remote_code: bool) -> Any:
    """The transformers model in eval mode, with weights from safetensors only. Raises BadInput for files that are no such model."""
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # the run has a progress display of its own
    attention.register()
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=getattr(torch, placement.dtype),
            attn_implementation=attention_name,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=trust_remote_code,
        )
    except (SafetensorError, OSError, ValueError) as error:
        found = f"a model that transformers cannot load ({type(error).__name__}: {error})"
        raise BadInput(str(folder), found=found, expected="config.json and its safetensors", do="Fetch the target again.") from error
    return model.to(placement.device).eval()


def facts_of(model: Any) -> Facts:
    """Sizes, and every token that ends an answer (config.json and generation_config.json name one or several)."""
    config = text_config(model.config.to_dict())
    eos = {e for c in (model.config, model.generation_config) if c is not None for e in _as_list(getattr(c, "eos_token_id", None))}
    sizes = (config["hidden_size"], config["vocab_size"], config["num_hidden_layers"])
    return Facts(*sizes, tuple(sorted(eos)), model.config.model_type, rope.theta_of(config))


@contextmanager
def record(layers: Any, boundaries: Sequence[int]) -> Iterator[dict[int, torch.Tensor]]:
    """Within it, each forward leaves the states at the boundaries here: k < L is the input of layer k, L the last output."""
    seen: dict[int, torch.Tensor] = {}

    def before(k: int) -> Any:
        def hook(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            seen[k] = args[0] if args else kwargs["hidden_states"]

        return hook

    def after(module: Any, args: Any, output: Any) -> None:
        seen[len(layers)] = output[0] if isinstance(output, tuple) else output

    handles = [
        layers[-1].register_forward_hook(after) if k == len(layers) else layers[k].register_forward_pre_hook(before(k), with_kwargs=True)
        for k in set(boundaries)
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def padded(sequences: Sequence[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens [B, T], padded on the right with token 0, and lengths [B]."""
    lengths_B = torch.tensor([len(s) for s in sequences])
    tokens_BT = torch.zeros(len(sequences), int(lengths_B.max()), dtype=torch.int64)
    for row, sequence in enumerate(sequences):
        tokens_BT[row, : len(sequence)] = torch.tensor(sequence)
    return tokens_BT, lengths_B


def _as_list(value: Any) -> list[int]:
    return [] if value is None else list(value) if isinstance(value, (list, tuple)) else [value]
