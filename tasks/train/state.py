"""What an interrupted training goes on from, in one safetensors file, replaced as a whole.

The library's own checkpoint cannot serve: it rounds weights and optimizer to bfloat16 (checkpointer.py,
speculators 0.9.0), so that a resumed run ends elsewhere, and it is a pickle.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from speculators.train.trainer import Trainer


@dataclass
class Progress:
    """How far the training is; `positions` and `supervised` are the tokens that reached the drafter since the epoch began."""

    epoch: int = 0
    step: int = 0
    positions: int = 0
    supervised: int = 0
    seconds: float = 0.0
    schedules: list[dict[str, object]] = field(default_factory=list)


def save_state(path: Path, trainer: Trainer, progress: Progress) -> None:
    """Write trained weights and optimizer state in full precision, and `progress`; a kill leaves the file before it."""
    progress.schedules = [scheduler.state_dict() for scheduler in trainer.schedulers]
    temporary = path.with_suffix(".writing")
    save_file(_tensors(trainer), temporary, metadata={"progress": json.dumps(asdict(progress))})
    temporary.replace(path)


def load_state(path: Path, trainer: Trainer) -> Progress:
    """Put what `save_state` wrote into a fresh trainer of the same configuration, and return its progress.

    Raises KeyError or RuntimeError when the file is not of this drafter and optimizer.
    """
    with safe_open(path, framework="pt", device=str(trainer.local_rank)) as file:
        progress = Progress(**json.loads(file.metadata()["progress"]))
        saved = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    for name, weight in _trained(trainer).items():
        weight.data.copy_(saved.pop(f"weight.{name}"))
    for name, value in saved.items():
        _, number, key, parameter = name.split(".", 3)
        trainer.optimizers[int(number)].state[_trained(trainer)[parameter]][key] = value
    for scheduler, values in zip(trainer.schedulers, progress.schedules, strict=True):
        scheduler.load_state_dict(values)
        for group, lr in zip(scheduler.optimizer.param_groups, scheduler.get_last_lr(), strict=True):
            group["lr"] = lr
    return progress


def _trained(trainer: Trainer) -> dict[str, torch.nn.Parameter]:
    return {name: weight for name, weight in trainer.model.named_parameters() if weight.requires_grad}


def _tensors(trainer: Trainer) -> dict[str, torch.Tensor]:
    """`weight.<parameter>`, and `optimizer.<number>.<key>.<parameter>`."""
    tensors = {}
    for name, weight in _trained(trainer).items():
        tensors[f"weight.{name}"] = weight.data
        for number, optimizer in enumerate(trainer.optimizers):
            tensors |= {f"optimizer.{number}.{key}.{name}": value for key, value in optimizer.state.get(weight, {}).items()}
    return tensors
