"""What the drafter is fed and what it answers, recorded for probe requests.

Attached by SGLang's own `--forward-hooks` (sglang 0.5.23, srt/model_executor/hook_manager.py), so that a server without
that option hooks nothing. SGLang registers the hook on the target's modules too, and after its graphs are captured: where
graphs are used the hook does not run, so probing is a launch of its own, without them.

A request is probed when its id says so (`PREFIX`), and only while no other request is in its batch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

PREFIX = "draftproof-probe-"
_NAME = re.compile(re.escape(PREFIX) + r"[a-z0-9-]{1,64}")

Hook = Callable[[torch.nn.Module, tuple[Any, ...], Any], None]


def hook(config: dict[str, Any]) -> Hook:
    """Called by SGLang, once per model, with the `config` of the launch's specification: `folder`, where to record."""
    return Recorder(Path(config["folder"])).hook


class Recorder:
    """One file per pass of the drafter, `<request id>/<number>.safetensors`.

    `input_ids_T`, `positions_T`; `fed_TH`: the target's features joined (n·H wide) where the pass reads them, else the
    drafter's own hidden state; `logits_LV` over the draft vocabulary, of the last L of the T positions.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._passing: tuple[Any, dict[str, torch.Tensor]] | None = None
        self._number = 0

    def hook(self, module: torch.nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        """On the drafter's body: remember what went in. On its logits processor, of the same pass: write both."""
        if hasattr(module, "fc"):  # only a drafter's body joins features
            self._passing = None
            ids, positions, batch = arguments[:3]
            if _probed(batch) is not None:
                fed = batch.spec_info.hidden_states
                self._passing = (batch, {"input_ids_T": ids, "positions_T": positions, "fed_TH": fed})
        elif self._passing is not None and len(arguments) > 3 and arguments[3] is self._passing[0]:
            batch, tensors = self._passing
            self._passing = None
            self._write(str(_probed(batch)), {**tensors, "logits_LV": output.next_token_logits})

    def _write(self, request: str, tensors: dict[str, torch.Tensor]) -> None:
        folder = self._folder / request
        folder.mkdir(parents=True, exist_ok=True)
        whole = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
        path = folder / f"{self._number:06d}.part"
        save_file(whole, path, metadata={"draftproof": json.dumps({"format": "draftproof-pass-1"})})
        path.rename(path.with_suffix(".safetensors"))
        self._number += 1


def _probed(batch: Any) -> str | None:
    """The id of the probe request that is alone in the batch."""
    requests = getattr(batch, "rids", None) or []
    return requests[0] if len(requests) == 1 and _NAME.fullmatch(str(requests[0])) else None
