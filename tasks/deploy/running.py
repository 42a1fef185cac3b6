"""A server that was not started by us: its resolved arguments against the rules of a launch, and its drafter's folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.deploy.refusals import refusals
from tasks.verdict import BadInput, Check, Outcome
from tasks.wiring.kinds import Kind

# Rules that a resolved argument can seem to break: nothing longer may ever be asked; `unquant` is resolved to null
# (srt/arg_groups/serving_hook.py:704-708 in sglang 0.5.23).
_UNSURE = ("rule context-within-drafter", "rule draft-quantisation")


def check_running(info: Mapping[str, Any], *, target: Path, checkpoint: Path) -> list[Check]:
    """`info`: its `/server_info`. Its folders may lie on another machine, so the rules read `target` and `checkpoint`.

    Raises BadInput for folders without a readable config.json.
    """
    path = info.get("speculative_draft_model_path")
    config = json.loads((target / "config.json").read_text(encoding="utf-8"))
    flags = {
        "page_size": 1,
        "speculative_draft_window_size": None,
        **info,
        "model_path": str(target),
        "speculative_draft_model_path": str(checkpoint) if path else None,
        "context_length": info.get("context_length") or config.get("max_position_embeddings") or 0,
        "max_total_tokens": info.get("max_total_num_tokens") or info.get("max_total_tokens") or 0,
    }
    if not path and not info.get("speculative_algorithm"):
        message = "the server does not speculate: its launch has neither an algorithm nor a draft path"
        return [Check(name="rule draft-path", verdict=Outcome.FAIL, kind=Kind.LAUNCH_FLAGS, message=message)]
    return [*_rules(flags), _steps(info), *_served_folder(path, checkpoint)]


def _rules(flags: Mapping[str, Any]) -> list[Check]:
    try:
        return [_doubted(check) for check in refusals(dict(flags)) if check.name != "rule pool-holds-a-request"]
    except KeyError as missing:
        raise BadInput("/server_info", found=f"no {missing}", expected="what SGLang 0.5.23 reports", do="Another version?") from missing


def _doubted(check: Check) -> Check:
    message = check.message.replace(", refused before the launch", "")
    unsure = check.name in _UNSURE and check.verdict is Outcome.FAIL
    return check.model_copy(update={"message": message, "verdict": Outcome.WARN if unsure else check.verdict})


def _steps(info: Mapping[str, Any]) -> Check:
    steps = info.get("speculative_num_steps")
    if steps == 1:
        message = "one draft step is blind to faults of later ones (`norm_output`): start the server with two to be sure"
        return Check(name="draft steps", verdict=Outcome.WARN, kind=Kind.LAUNCH_FLAGS, message=message, numbers={"steps": steps})
    return Check(name="draft steps", verdict=Outcome.PASS, message=f"{steps} draft steps", numbers={"steps": steps})


def _served_folder(path: str | None, checkpoint: Path) -> list[Check]:
    """The config.json that is served against the checkpoint's, where it lies on this machine."""
    try:
        served = json.loads((Path(path or "") / "config.json").read_text(encoding="utf-8")) if path else None
    except (OSError, ValueError):
        served = None
    if not isinstance(served, dict):
        return []
    ours = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    other = {key: [served.get(key), ours.get(key)] for key in sorted({*served, *ours}) if served.get(key) != ours.get(key)}
    if not other:
        return [Check(name="served config.json", verdict=Outcome.PASS, message=f"{path} says what the checkpoint says")]
    told = "; ".join(f"{key}: {there}, here {here}" for key, (there, here) in other.items())
    message = f"{path}/config.json, which the server names, is not the checkpoint's: {told}"
    return [Check(name="served config.json", verdict=Outcome.WARN, kind=Kind.LAUNCH_FLAGS, message=message, numbers={"other": other})]
