"""The standalone drafter: EAGLE-3's forward in torch alone, in float32.

Position t takes the embedding of token x[t+1] and the target's features at t, and predicts x[t+2].
Shapes: B sequences, S positions, n features, H hidden size, h heads, D head size, V draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Protocol

import torch
import torch.nn.functional as F

from tasks.verdict import BadInput, Outcome
from tasks.verify.architecture import Architecture
from tasks.verify.checkpoint import Checkpoint, check_tensors, slots
from tasks.verify.memory import Unrolled
from tasks.verify.rope import frequencies, rotate
from tasks.wiring import vocabulary

_LAYER = "layers.0."
# Tensors that are no weight of the forward; the embedding is always the target's, as it is in an engine.
_NO_WEIGHTS = ("d2t", "t2d", "embed_tokens.weight")


class Memory(Protocol):
    """What attention remembers between two calls."""

    def attend(self, query_BhSD: torch.Tensor, key_BhSD: torch.Tensor, value_BhSD: torch.Tensor) -> torch.Tensor:
        """Remember keys and values (fewer heads than queries), and return what each query attends to, [B, h, S, D]."""


class Drafter:
    """`target_ids_V[i]` is the target's token of draft token i."""

    def __init__(
        self,
        architecture: Architecture,
        weights: Mapping[str, torch.Tensor],
        target_ids_V: torch.Tensor,
        embedding: torch.Tensor,
        device: str = "cpu",
    ) -> None:
        self.architecture = architecture
        self.device = device
        self.weights = {name: tensor.to(device, torch.float32) for name, tensor in weights.items()}
        self.target_ids_V = target_ids_V.to(device)
        self.embedding = embedding.to(device, torch.float32)
        self._frequencies = frequencies(architecture.rope).to(device)

    def changed(
        self, *, weights: Mapping[str, torch.Tensor] | None = None, target_ids_V: torch.Tensor | None = None, **flags: Any
    ) -> Drafter:
        """A drafter with some weights, the vocabulary map or fields of its architecture replaced: what the diagnosis tries."""
        ids = self.target_ids_V if target_ids_V is None else target_ids_V
        return Drafter(replace(self.architecture, **flags), {**self.weights, **(weights or {})}, ids, self.embedding, self.device)

    def hidden(self, features_BSnH: torch.Tensor) -> torch.Tensor:
        """The features, joined into the layer's input [B, S, H]."""
        joined = features_BSnH.flatten(-2)
        if self.architecture.norm_before_fc:
            joined = self._norm(joined, "input_norm.weight")
        if self.architecture.fc_norm:
            parts = joined.chunk(self.architecture.num_features, -1)
            joined = torch.cat([self._norm(part, f"fc_norm.{i}.weight") for i, part in enumerate(parts)], -1)
        return F.linear(joined, self.weights["fc.weight"], self.weights.get("fc.bias"))

    def step(
        self, tokens_BS: torch.Tensor, hidden_BSH: torch.Tensor, positions_BS: torch.Tensor, memory: Memory
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One pass of the layer: the normed state that the head reads, and the hidden state for the next draft step, [B, S, H] each."""
        a, w = self.architecture, self.weights
        normed = self._norm(hidden_BSH, f"{_LAYER}hidden_norm.weight")
        embedded = self._norm(self.embedding[tokens_BS], f"{_LAYER}input_layernorm.weight")
        joined = torch.cat([embedded, normed], -1)
        angles = positions_BS[..., None].float() * self._frequencies
        query = rotate(self._heads(joined, "q", a.num_attention_heads), angles)
        key = rotate(self._heads(joined, "k", a.num_key_value_heads), angles)
        attended = memory.attend(query, key, self._heads(joined, "v", a.num_key_value_heads)).transpose(1, 2).flatten(-2)
        residual = normed if a.norm_before_residual else hidden_BSH
        state = residual + F.linear(attended, w[f"{_LAYER}self_attn.o_proj.weight"])
        inner = self._norm(state, f"{_LAYER}post_attention_layernorm.weight")
        gated = F.silu(F.linear(inner, w[f"{_LAYER}mlp.gate_proj.weight"])) * F.linear(inner, w[f"{_LAYER}mlp.up_proj.weight"])
        state = state + F.linear(gated, w[f"{_LAYER}mlp.down_proj.weight"])
        final = self._norm(state, "norm.weight")
        return final, (final if a.norm_output else state)

    def logits(self, final: torch.Tensor) -> torch.Tensor:
        """The head over normed states [..., H]: draft logits [..., V]."""
        return F.linear(final, self.weights["lm_head.weight"])

    def unroll(
        self, tokens_BS: torch.Tensor, features_BSnH: torch.Tensor, steps: int, *, serving: bool = False, advance: int = 1
    ) -> Iterator[torch.Tensor]:
        """Teacher-forced draft steps over whole sequences: yields the normed states [B, S-1, H] of steps 0, 1, ….

        At step k, index j has taken x[j+1+k] and predicts x[j+2+k]; it attends to step 0 up to j and to its own
        chain. Entries with j+1+k >= S are padding. Positions start at 1 as in training (speculators 0.9.0,
        eagle3/data.py), with `serving` at 0 as in SGLang; an attention window moves along with the chain only there.
        `advance`: by how much a draft step moves the position; only a hypothesis of the diagnosis says other than 1.
        """
        tokens = tokens_BS.to(self.device)
        hidden = self.hidden(features_BSnH[:, :-1].to(self.device, torch.float32))
        batch, length = hidden.shape[:2]
        positions = torch.arange(length, device=self.device).expand(batch, -1) + (0 if serving else 1)
        memory = Unrolled(self.architecture.attention_window, moving=serving)
        for k in range(steps):
            padded = F.pad(tokens[:, 1 + k :], (0, k))[:, :length]
            final, hidden = self.step(padded, hidden, positions + k * advance, memory)
            yield final

    def _heads(self, joined: torch.Tensor, which: str, heads: int) -> torch.Tensor:
        return F.linear(joined, self.weights[f"{_LAYER}self_attn.{which}_proj.weight"]).unflatten(-1, (heads, -1)).transpose(1, 2)

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        if name in self.architecture.left_out:
            return x
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.architecture.rms_norm_eps)
        return x * scale * self.weights[name]


def load_drafter(checkpoint: Checkpoint, embedding: torch.Tensor, device: str = "cpu") -> Drafter:
    """The drafter of a checkpoint, every tensor used and none missing.

    Raises BadInput for whatever `check_tensors` fails, a vocabulary map that leaves the target's vocabulary, or
    an embedding of another shape than the drafter needs.
    """
    architecture, where = checkpoint.architecture, str(checkpoint.folder)
    for check in check_tensors(checkpoint):
        if check.verdict is Outcome.FAIL:
            raise BadInput(where, found=check.message, expected="the tensors of its architecture", do="Export the drafter again.")
    if tuple(embedding.shape) != (architecture.vocab_size, architecture.hidden_size):
        found, expected = list(embedding.shape), [architecture.vocab_size, architecture.hidden_size]
        raise BadInput(where, found=f"a target with embedding {found}", expected=f"{expected}", do="This is another target's drafter.")
    weights: dict[str, torch.Tensor] = {}
    for name, slot in slots(architecture).items():
        if name not in _NO_WEIGHTS:
            # NaN first: a value that was never written shows in every number that follows.
            weights[name] = torch.full(slot.shape, torch.nan)
            weights[name].copy_(checkpoint.tensor(name))
    return Drafter(architecture, weights, target_ids(checkpoint), embedding, device)


def target_ids(checkpoint: Checkpoint) -> torch.Tensor:
    """The target's token of each draft token, int64 [V]; `static` judges them. Raises BadInput when one is out of range."""
    architecture = checkpoint.architecture
    d2t = checkpoint.tensor("d2t") if "d2t" in checkpoint.stored else torch.zeros(architecture.draft_vocab_size, dtype=torch.int64)
    ids = vocabulary.target_ids(d2t)
    if int(ids.min()) < 0 or int(ids.max()) >= architecture.vocab_size:
        raise BadInput(
            f"{checkpoint.folder}: d2t",
            found=f"target ids {int(ids.min())} to {int(ids.max())}",
            expected=f"0 to {architecture.vocab_size - 1}",
            do="d2t holds offsets: target id = draft id + d2t[draft id].",
        )
    return ids
