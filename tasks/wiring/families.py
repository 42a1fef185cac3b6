"""Which targets SGLang 0.5.23 can serve an EAGLE-3 drafter for, by family, and which draft architectures.

A family is one file of SGLang's models with its own meaning of a layer id (`facts/sglang-families.md`). A target
outside of the table is refused by name: several other families capture something else, or nothing at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tasks.verdict import BadInput

DRAFT_ARCHITECTURE = "LlamaForCausalLMEagle3"
# Architectures that a drafter's config.json may name: SGLang's own, speculators', and the original EAGLE-3 ones.
DRAFT_ARCHITECTURES = (DRAFT_ARCHITECTURE, "Eagle3Speculator", "Eagle3DraftModel")
_MLA_DRAFTER = "Eagle3DeepseekV2ForCausalLM"

IdRule = Literal["output-of-layer", "input-of-layer"]


@dataclass(frozen=True)
class Family:
    """A family of targets.

    `id_rule`: an explicit id i is the output of layer i (boundary i+1), or the input of layer i (boundary i).
    `architectures` maps each architecture SGLang serves so to the `model_type`s that its config.json may have.
    """

    name: str
    module: str
    id_rule: IdRule
    architectures: Mapping[str, tuple[str, ...]]


FAMILIES = (
    Family(
        "llama",
        "sglang.srt.models.llama",
        "output-of-layer",
        {
            "LlamaForCausalLM": ("llama",),
            "MistralForCausalLM": ("mistral",),
            "Phi3ForCausalLM": ("phi3",),
        },
    ),
    Family(
        "qwen2",
        "sglang.srt.models.qwen2",
        "output-of-layer",
        {"Qwen2ForCausalLM": ("qwen2",)},
    ),
    Family(
        "qwen3",
        "sglang.srt.models.qwen3",
        "output-of-layer",
        {"Qwen3ForCausalLM": ("qwen3",)},
    ),
    # qwen3_moe.py captures in Qwen2MoeModel.forward, so both are one family.
    Family(
        "qwen3_moe",
        "sglang.srt.models.qwen3_moe",
        "output-of-layer",
        {"Qwen3MoeForCausalLM": ("qwen3_moe",), "Qwen2MoeForCausalLM": ("qwen2_moe",)},
    ),
    Family(
        "deepseek_v2",
        "sglang.srt.models.deepseek_v2",
        "input-of-layer",
        {
            "DeepseekV2ForCausalLM": ("deepseek_v2",),
            "DeepseekV3ForCausalLM": ("deepseek_v3", "kimi_k2"),
            "KimiK25ForConditionalGeneration": ("kimi_k25",),
        },
    ),
)


def family(model_type: str, where: str = "target") -> Family:
    """The family of a `model_type` (TargetPrint.family holds one). Raises BadInput naming an unsupported one."""
    for candidate in FAMILIES:
        if any(model_type in types for types in candidate.architectures.values()):
            return candidate
    raise BadInput(
        where,
        found=f"model_type {model_type!r}",
        expected=f"one of {', '.join(supported_model_types())}",
        do="What SGLang captures for other families is not proven here: choose another target.",
    )


def family_of_config(config: Mapping[str, Any], where: str = "config.json") -> Family:
    """The family of a target by its config.json. Raises BadInput: unsupported, or architecture and model_type disagree.

    SGLang chooses its code by `architectures`; a config without them is judged by `model_type` alone.
    """
    found = family(str(config.get("model_type")), where)
    architectures = config.get("architectures") or []
    if not architectures:
        return found
    if str(config["model_type"]) not in found.architectures.get(str(architectures[0]), ()):
        raise BadInput(
            where,
            found=f"architecture {architectures[0]!r} with model_type {config['model_type']!r}",
            expected=f"one of {', '.join(name for f in FAMILIES for name in f.architectures)}, with its own model_type",
            do="What SGLang captures for other architectures is not proven here: choose another target.",
        )
    return found


def supported_model_types() -> list[str]:
    """Every `model_type` of the table."""
    return [model_type for f in FAMILIES for types in f.architectures.values() for model_type in types]


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a target's config.json that describes its language model (nested in multimodal wrappers)."""
    nested = config.get("text_config")
    return nested if isinstance(nested, Mapping) else config


def check_draft_architecture(config: Mapping[str, Any], where: str = "config.json") -> None:
    """Raises BadInput naming a drafter's architecture that is no EAGLE-3 drafter with a Llama layer."""
    architectures = [str(name) for name in config.get("architectures") or ["(none)"]]
    if _MLA_DRAFTER in architectures:
        raise BadInput(
            where,
            found=f"an MLA drafter ({_MLA_DRAFTER})",
            expected=f"{DRAFT_ARCHITECTURE}, a drafter with a Llama layer",
            do="Drafters with multi-head latent attention are not supported.",
        )
    if not set(architectures) & set(DRAFT_ARCHITECTURES):
        raise BadInput(
            where,
            found=f"architecture {', '.join(architectures)}",
            expected=f"one of {', '.join(DRAFT_ARCHITECTURES)}",
            do="Only EAGLE-3 drafters can be read.",
        )
