"""The translators against the pinned SGLang's own code, for every supported architecture."""

from __future__ import annotations

from typing import Any

import pytest

from tasks.verdict import BadInput
from tasks.wiring.families import FAMILIES, Family, family
from tasks.wiring.translate import sglang_boundaries, sglang_default_boundaries, sglang_ids
from tests.sglang_own import ask

L = 8
TARGETS = [(f, architecture) for f in FAMILIES for architecture in f.architectures]
# Explicit ids as somebody might write them: with and without the embedding, boundary 1, the last, in any order, beyond the target.
WRITTEN = [[-1, 2], [0, 3, 5], [1, 3], [3, 1], [0, 1], [1], [5, 2], [2, 2], [2, 6], [2, 7], [2, 8], [-2, 3], [-9, 3], [0, 7], [7, 8], [8]]
WANTED = [[0, 3], [0, 3, 7], [1, 4], [1, 4, 7], [0, 1, 2], [2, 4, 5], [6, 7], [1, 2]]


def own(target: tuple[Family, str], ids: list[int] | None, layers: int = L) -> dict[str, Any]:
    found, architecture = target
    module = {"MistralForCausalLM": "mistral", "Qwen2MoeForCausalLM": "qwen2_moe", "KimiK25ForConditionalGeneration": "kimi_k25"}
    return ask({"capture": [module.get(architecture, found.module.rsplit(".")[-1]), architecture], "layers": layers, "ids": ids})


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t[1])
class TestAgainstSGLang:
    @pytest.mark.parametrize("ids", WRITTEN, ids=str)
    def test_any_ids_feed_what_the_table_says(self, target: tuple[Family, str], ids: list[int]) -> None:
        served = own(target, ids)
        if "error" in served:
            assert served["error"] in ("IndexError", "RuntimeError"), served
            with pytest.raises(BadInput, match=served["error"]):
                sglang_boundaries(ids, target[0], L)
        else:
            assert sglang_boundaries(ids, target[0], L) == served["captured"]

    @pytest.mark.parametrize("boundaries", WANTED, ids=str)
    def test_translated_ids_feed_the_boundaries_that_were_wanted(self, target: tuple[Family, str], boundaries: list[int]) -> None:
        ids = sglang_ids(boundaries, target[0], L)
        assert own(target, ids).get("captured") == boundaries
        assert sglang_boundaries(ids, target[0], L) == boundaries

    @pytest.mark.parametrize("layers", [6, 8, 30, 61])
    def test_the_default(self, target: tuple[Family, str], layers: int) -> None:
        served = own(target, None, layers)
        if "error" in served:  # fewer than eight layers: the default repeats itself, and DeepSeek stops
            assert target[0].name == "deepseek_v2" and layers == 6
        else:
            assert served["captured"] == sglang_default_boundaries(layers)

    def test_the_last_boundary_cannot_be_served_by_any_id(self, target: tuple[Family, str]) -> None:
        for i in range(-L, L + 2):
            assert L not in own(target, [2, i]).get("captured", [])


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3", "qwen3_moe", "deepseek_v3", "kimi_k25"])
@pytest.mark.parametrize(
    ("boundaries", "reason"),
    [([3], "at least two"), ([0, L], f"0..{L - 1}"), ([-1, 2], f"0..{L - 1}"), ([3, 1], "ascending"), ([2, 2], "ascending")],
)
def test_what_cannot_be_served_is_refused_with_the_reason(model_type: str, boundaries: list[int], reason: str) -> None:
    with pytest.raises(BadInput, match=reason):
        sglang_ids(boundaries, family(model_type), L)


def test_the_story() -> None:
    """61 layers of DeepSeek kind: [0, 3, 31] was trained; ids [2, 30, 58] feed those, and the default something else."""
    deepseek = family("kimi_k2")
    assert sglang_ids([0, 3, 31], deepseek, 61) == [0, 3, 31]
    assert sglang_boundaries([2, 30, 58], deepseek, 61) == [2, 30, 58]
    assert sglang_boundaries([1, 30, 58], deepseek, 61) == [2, 31, 59]
    assert sglang_ids([1, 30, 58], deepseek, 61) == [30, 58, 1]
    assert sglang_boundaries([2, 30, 58], family("llama"), 61) == [3, 31, 59]
