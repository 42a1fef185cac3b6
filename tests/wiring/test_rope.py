"""RoPE from every form of config.json. Against SGLang itself: tests/export/test_contract.py."""

from __future__ import annotations

from typing import Any

import pytest

from tasks.verdict import BadInput
from tasks.wiring.rope import as_config, resolve, says_theta

SIZES = {"hidden_size": 64, "num_attention_heads": 4}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


@pytest.mark.parametrize(
    ("config", "theta", "kind", "head_dim"),
    [
        ({}, 10000.0, "default", 16),
        ({"rope_theta": 5e5}, 5e5, "default", 16),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}, "head_dim": 32}, 5e5, "default", 32),
        ({"rope_parameters": None, "rope_theta": 5e5}, 5e5, "default", 16),
        ({"rope_scaling": {"type": "linear", "factor": 2}, "rope_theta": 1e6}, 1e6, "linear", 16),
        ({"rope_parameters": {**LLAMA3, "rope_theta": 5e5}}, 5e5, "llama3", 16),
    ],
)
def test_resolved(config: dict[str, Any], theta: float, kind: str, head_dim: int) -> None:
    rope = resolve({**SIZES, **config})
    assert (rope.theta, rope.type, rope.head_dim) == (theta, kind, head_dim)
    assert resolve({**SIZES, "head_dim": rope.head_dim, "rope_parameters": as_config(rope)}) == rope


def test_the_same_values_from_two_forms_are_equal() -> None:
    old = {**SIZES, "rope_theta": 5e5, "rope_scaling": LLAMA3}
    new = {**SIZES, "rope_parameters": {**LLAMA3, "rope_theta": 500000}}
    assert resolve(old) == resolve(new)


@pytest.mark.parametrize(
    "config",
    [
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
        {"rope_parameters": {"full_attention": {"rope_theta": 1e4}, "sliding_attention": {"rope_theta": 1e4}}},
        {"partial_rotary_factor": 0.5},
        {"rope_theta": -1},
        {"rope_theta": "1e4"},
        {"rope_theta": float("nan")},
        {"rope_scaling": {"rope_type": "linear"}},
        {"rope_parameters": [1e4]},
        {"head_dim": 15},
        {"num_attention_heads": 0},
    ],
    ids=str,
)
def test_what_cannot_be_resolved_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        resolve({**SIZES, **config})


def test_an_unsaid_theta_is_noticed() -> None:
    assert not says_theta(SIZES) and not says_theta({"rope_scaling": {"type": "linear", "factor": 2}})
    assert says_theta({"rope_theta": 1e4}) and says_theta({"rope_parameters": {"rope_theta": 1e4}})
