"""A hash of each weight: which ones are not those that were exported is known before anything is computed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch

from tasks.wiring.checkpoint_contract import canonical

# The vocabulary map has a hash of its own in the record, and an engine replaces the embedding by the target's.
_NO_WEIGHTS = ("d2t", "t2d", "embed_tokens.weight")


def hashes(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """SHA-256 of each weight by canonical name, over its shape and its values in float32.

    So neither another of its known names nor a wider dtype changes it.
    """
    named = {canonical(name): tensor for name, tensor in tensors.items()}
    return {name: _hash(named[name]) for name in sorted(named) if name not in _NO_WEIGHTS}


def _hash(tensor: torch.Tensor) -> str:
    digest = hashlib.sha256(repr(tuple(tensor.shape)).encode())
    digest.update(tensor.float().contiguous().numpy())
    return digest.hexdigest()
