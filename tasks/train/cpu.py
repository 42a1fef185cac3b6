"""Where speculators 0.9.0 assumes an accelerator: replaced here, only on a CPU, and nowhere else."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from importlib import metadata
from typing import Any

import torch
from speculators.train import trainer as library
from torch.utils.data import DataLoader

from tasks.train.kernels import argmax
from tasks.verdict import MachineTrouble

_READ = "0.9.0"


@contextmanager
def accelerator_not_needed(device: str) -> Iterator[None]:
    """Let the library's `Trainer` work on a CPU while the context is open; on a GPU, change nothing.

    Raises MachineTrouble when the installed speculators is not the version whose source was read, or lacks a name
    that is replaced: a replacement that no longer fits must not pass unseen.
    """
    if device != "cpu":
        yield
        return
    found = metadata.version("speculators")
    if found != _READ:
        raise MachineTrouble(f"tasks/train/cpu.py was written for speculators {_READ}; {found} is installed. Read its trainer.py anew.")
    with ExitStack() as stack:
        # trainer.py:218, 348: `model.to(get_local_rank())`, where rank 0 means the first accelerator.
        stack.enter_context(_replaced(library, "get_local_rank", lambda: "cpu"))
        # trainer.py:80, 93: the step timer waits for the accelerator, and raises without one.
        stack.enter_context(_replaced(torch.accelerator, "synchronize", lambda *_: None))
        # core.py decorates the forward with torch.compile wherever CUDA is present, even for tensors on the CPU.
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        # trainer.py:446: autocast to float32 is the library's way of saying "none".
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message="In CPU autocast, but the target dtype is not supported")
        yield


@contextmanager
def faster_argmax(device: str) -> Iterator[None]:
    """On a CPU: the library takes three of them per unrolled step over the draft vocabulary (core.py, metrics.py)."""
    with _replaced(torch, "argmax", argmax) if device == "cpu" else nullcontext():
        yield


def settle(trainer: library.Trainer, *loaders: DataLoader) -> None:
    """What can only be set on the finished objects: autocast's device (trainer.py:226), no pinned memory (dataloader.py:86)."""
    _existing(trainer, "device_type")
    trainer.device_type = "cpu"
    for loader in loaders:
        loader.pin_memory = False


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = _existing(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _existing(owner: Any, name: str) -> Any:
    if not hasattr(owner, name):
        raise MachineTrouble(f"speculators {_READ} should have {owner!r}.{name}, and has not: tasks/train/cpu.py no longer fits.")
    return getattr(owner, name)
