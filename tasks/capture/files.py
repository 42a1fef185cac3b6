"""Feature files: speculators' form, one safetensors file per conversation.

`hidden_states` bfloat16 [S, n+1, H] (the boundaries, then the last state before the final norm), `token_ids` int64 [S].
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tasks.wiring.answering import Answer


class FileTap:
    """Implements `tasks.wiring.answering.Tap`: keeps the features of an answered conversation under its id."""

    def __init__(self, boundaries: list[int]) -> None:
        self.boundaries = boundaries

    def keep(self, folder: Path, conversation: str, answer: Answer) -> None:
        assert answer.features_SnH is not None
        write(kept(folder, conversation), answer.features_SnH, answer.tokens)


def kept(folder: Path, conversation: str) -> Path:
    """Where a tap keeps a conversation's features."""
    return folder / f"{conversation}.safetensors"


def write(path: Path, features_SnH: torch.Tensor, tokens: list[int]) -> None:
    """Write a feature file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".part")
    save_file({"hidden_states": features_SnH.contiguous(), "token_ids": torch.tensor(tokens)}, temporary)
    temporary.replace(path)


def read(path: Path) -> tuple[torch.Tensor, list[int]]:
    """Features [S, n+1, H] and tokens of a feature file."""
    tensors = load_file(path)
    return tensors["hidden_states"], tensors["token_ids"].tolist()


def holds(path: Path, tokens: list[int], boundaries: int) -> bool:
    """Whether a feature file is there, and is of these tokens and so many boundaries."""
    if not path.is_file():
        return False
    with safe_open(path, "pt") as tensors:
        shape = tensors.get_slice("hidden_states").get_shape()
        return bool(shape[:2] == [len(tokens), boundaries] and tensors.get_tensor("token_ids").tolist() == tokens)


def link(source: Path, path: Path) -> None:
    """The same bytes under another name, without another copy where the disk allows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    try:
        os.link(source, path)
    except OSError:
        shutil.copyfile(source, path)
