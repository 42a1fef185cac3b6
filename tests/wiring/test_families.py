"""What is supported is in the table; what is not is refused by its name."""

from __future__ import annotations

from typing import Any

import pytest

from tasks.verdict import BadInput
from tasks.wiring.families import check_draft_architecture, family, family_of_config, supported_model_types, text_config


@pytest.mark.parametrize(
    ("model_type", "architecture", "name"),
    [
        ("llama", "LlamaForCausalLM", "llama"),
        ("mistral", "MistralForCausalLM", "llama"),
        ("qwen3_moe", "Qwen3MoeForCausalLM", "qwen3_moe"),
        ("kimi_k2", "DeepseekV3ForCausalLM", "deepseek_v2"),
        ("kimi_k25", "KimiK25ForConditionalGeneration", "deepseek_v2"),
    ],
)
def test_supported(model_type: str, architecture: str, name: str) -> None:
    assert family(model_type).name == family_of_config({"model_type": model_type, "architectures": [architecture]}).name == name
    assert family_of_config({"model_type": model_type}).name == name


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"]}, "gemma3_text"),
        ({"model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"]}, "gpt_oss"),
        ({"model_type": "llama", "architectures": ["InternLM3ForCausalLM"]}, "InternLM3ForCausalLM"),
        ({"model_type": "llama", "architectures": ["Qwen2ForCausalLM"]}, "Qwen2ForCausalLM"),
        ({}, "None"),
    ],
)
def test_unsupported_targets_are_refused_by_name(config: dict[str, Any], named: str) -> None:
    with pytest.raises(BadInput, match=named):
        family_of_config(config)


@pytest.mark.parametrize("architecture", ["LlamaForCausalLMEagle3", "Eagle3Speculator"])
def test_readable_drafters(architecture: str) -> None:
    check_draft_architecture({"architectures": [architecture]})


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"architectures": ["Eagle3DeepseekV2ForCausalLM"]}, "MLA drafter"),
        ({"architectures": ["LlamaForCausalLMEagle"]}, "LlamaForCausalLMEagle"),
        ({}, "none"),
    ],
)
def test_unreadable_drafters_are_refused_by_name(config: dict[str, Any], named: str) -> None:
    with pytest.raises(BadInput, match=named):
        check_draft_architecture(config)


def test_the_language_model_of_a_wrapper() -> None:
    assert text_config({"model_type": "kimi_k25", "text_config": {"num_hidden_layers": 61}})["num_hidden_layers"] == 61
    assert text_config({"num_hidden_layers": 2})["num_hidden_layers"] == 2
    assert "kimi_k25" in supported_model_types()
