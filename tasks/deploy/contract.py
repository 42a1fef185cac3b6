"""The launch contract, answered: what the server says it resolved, compared with what was asked of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.deploy.launch import Launch
from tasks.verdict import Check, Outcome
from tasks.wiring.kinds import Kind

# Fields that `/server_info` reports elsewhere or under another name (sglang 0.5.23).
_GRAPHS = {
    "cuda_graph_backend_decode": ("decode", "backend"),
    "cuda_graph_backend_prefill": ("prefill", "backend"),
    "cuda_graph_max_bs_decode": ("decode", "max_bs"),
}
# `unquant` is resolved to "no quantisation" (srt/arg_groups/serving_hook.py:704-708).
_SAME = {("speculative_draft_model_quantization", "unquant"): None}

_MISSING = "<not reported>"


def compare(launch: Launch, info: Mapping[str, Any]) -> list[Check]:
    """What a running server resolved: `compare_flags`, and the KV pool that was really made.

    Args:
        info: `/server_info`: the resolved arguments, and what the scheduler made of them.
    """
    return [*compare_flags(launch, info), _pool(launch, info)]


def compare_flags(launch: Launch, resolved: Mapping[str, Any]) -> list[Check]:
    """One FAIL for each difference of asked and resolved, or the one PASS that there is none."""
    asked = {**launch.flags, "weight_version": launch.identity}
    differences = [c for name, value in asked.items() if (c := _difference(name, value, _resolved(name, resolved))) is not None]
    message = f"{len(asked)} settings are resolved as asked"
    return differences or [Check(name="launch flags", verdict=Outcome.PASS, message=message, numbers={"settings": len(asked)})]


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Settings in which two servers' resolved arguments differ: for the record of a comparison."""
    live = {"internal_states", "startup_time", "launch_command", "kv_events"}
    return {k: (one.get(k), other.get(k)) for k in sorted({*one, *other} - live) if one.get(k) != other.get(k)}


def _resolved(name: str, info: Mapping[str, Any]) -> Any:
    if name not in _GRAPHS:
        return info.get(name, _MISSING)
    phase, key = _GRAPHS[name]
    return ((info.get("cuda_graph_config") or {}).get(phase) or {}).get(key, _MISSING)


def _difference(name: str, asked: Any, resolved: Any) -> Check | None:
    expected = _SAME.get((name, asked), asked) if isinstance(asked, str) else asked
    if resolved == expected and isinstance(resolved, bool) == isinstance(expected, bool):
        return None
    return Check(
        name=f"launch flag {name}",
        verdict=Outcome.FAIL,
        kind=Kind.LAUNCH_FLAGS,
        message=f"{name}: asked {asked!r}, the server resolved {resolved!r}; ask for what it can do, or find the rule that changed it",
        numbers={"flag": name, "asked": asked, "got": resolved},
    )


def _pool(launch: Launch, info: Mapping[str, Any]) -> Check:
    """`max_total_tokens` is only an upper bound: the memory may carry fewer."""
    asked, got = launch.flags["max_total_tokens"], info.get("max_total_num_tokens", _MISSING)
    good = got == asked
    return Check(
        name="KV pool",
        verdict=Outcome.PASS if good else Outcome.FAIL,
        kind=None if good else Kind.LAUNCH_FLAGS,
        message=f"max_total_tokens: asked {asked}, the pool has {got}"
        + ("" if good else "; raise mem_fraction_static or lower max_total_tokens"),
        numbers={"flag": "max_total_tokens", "asked": asked, "got": got},
    )
