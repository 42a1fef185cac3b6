"""Faults inside of a real server: a hook of SGLang's own kind (`--forward-hooks`), switched by what stands in a file.

Imported by the server alone, which is given this folder as its PYTHONPATH; so it imports nothing of ours.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

# Up to here a difference of the two best logits is a near-tie, as a share of the largest: less than what the check allows.
NEAR = 2**-7


def hook(config: dict[str, Any]) -> Any:
    """Called by SGLang once for the target and once for the drafter, with the `config` of the launch's specification."""
    return Spoiler(Path(config["mode"]), config["vocab_size"]).hook


class Spoiler:
    """`warm`: behind a prefix from the cache, the drafter's logits are another draft's (a cache that lost what belongs to it).

    `rounded`: of two nearly equal logits of the target, the other is larger, as rounding may have it.
    `confused`: of two clearly different ones too. Anything else: a healthy server.
    """

    def __init__(self, mode: Path, vocab_size: int) -> None:
        self._mode, self._vocab_size = mode, vocab_size
        self._reused = False

    def hook(self, module: torch.nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        """On the body of either model: was the prompt's beginning in the cache? On its logits processor: spoil the logits."""
        batch = arguments[2] if len(arguments) > 2 else None
        if getattr(getattr(batch, "forward_mode", None), "name", "") == "EXTEND":
            self._reused = bool(batch.extend_prefix_lens_cpu[0])
        logits_TV = getattr(output, "next_token_logits", None)
        if logits_TV is None:
            return
        mode, drafter = self._mode.read_text(), logits_TV.shape[-1] != self._vocab_size
        if mode == "warm" and drafter and self._reused:
            logits_TV.copy_(logits_TV.roll(1, -1))
        if mode in ("rounded", "confused") and not drafter:
            swap_nearest(logits_TV, near=mode == "rounded")


def swap_nearest(logits_TV: torch.Tensor, *, near: bool) -> None:
    """Exchange the two largest of each row that are a near-tie, or that are none."""
    best_T2, where_T2 = logits_TV.topk(2)
    tie_T = best_T2[:, 0] - best_T2[:, 1] <= NEAR * logits_TV.abs().amax(-1)
    rows = (tie_T == near).nonzero()[:, 0]
    logits_TV[rows[:, None], where_T2[rows]] = best_T2[rows].flip(-1)
