"""The contract of a drafter that SGLang 0.5.23 serves: everything that it would drop, ignore or misread in silence.

`tests/export/test_contract.py` holds names, shapes and keys against `llama_eagle3.py` itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from tasks.store import read_small
from tasks.verdict import BadInput, Check
from tasks.wiring import served_config as keys
from tasks.wiring.families import check_draft_architecture
from tasks.wiring.kinds import Kind
from tasks.wiring.record import FILE, WiringRecord
from tasks.wiring.record_check import check_record
from tasks.wiring.rope import theta_of
from tasks.wiring.served_config import TargetSizes, broken, passed
from tasks.wiring.vocabulary import check_map

CONFIG, WEIGHTS = "config.json", "model.safetensors"
# llama_eagle3.py:266-272: older names of the same tensors; a name is also found with the prefix `model.`.
_LEGACY = {"midlayer.": "layers.0.", "aux_norm_low.": "fc_norm.0.", "aux_norm_mid.": "fc_norm.1.", "aux_norm_high.": "fc_norm.2."}
_OPTIONAL = {"d2t", "t2d", "embed_tokens.weight"}
_BY_FLAG = ("input_norm.", "fc_norm.")


def check_served_form(folder: Path, target_config: Mapping[str, Any], *, context_length: int | None = None) -> list[Check]:
    """Every static check of an SGLang checkpoint folder for a target, in the order in which a person would ask.

    Args:
        folder: `config.json`, `model.safetensors`, and, if export made it, `wiring.json`.
        target_config: the target's config.json.
        context_length: positions that will be served; null = not checked.

    Raises BadInput: the target's family or the drafter's architecture is not supported, or a file cannot be read.
    """
    config = _read_json(folder / CONFIG)
    check_draft_architecture(config, str(folder / CONFIG))
    target = TargetSizes.of(target_config)
    tensors = _read_tensors(folder / WEIGHTS)
    checks = [
        keys.check_flags(config, target.hidden_size),
        keys.check_boundaries_fed(config, target),
        check_tensors(config, tensors),
        keys.check_dtype(config, {str(t.dtype).removeprefix("torch.") for t in tensors.values() if t.is_floating_point()}, target),
        check_vocabulary(config, tensors, target),
        keys.check_rope(config, theta_of(target.config)),
        keys.check_window(config),
    ]
    if context_length is not None:
        checks.append(keys.check_context(config, context_length))
    if (folder / FILE).exists():
        checks += check_record(WiringRecord.read(folder), config, tensors.get("d2t"), target)
    return checks


def served_tensors(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Name (`layers.0.…`) and shape of each weight that SGLang wants for this config, its fused ones taken apart."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    head_dim = config.get("head_dim") or hidden // config["num_attention_heads"]
    queries, kv = config["num_attention_heads"] * head_dim, (config.get("num_key_value_heads") or config["num_attention_heads"]) * head_dim
    features, layer, flags = keys.num_features(config), "layers.0.", keys.flags(config)
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, features * hidden),
        f"{layer}input_layernorm.weight": (hidden,),
        f"{layer}hidden_norm.weight": (hidden,),
        f"{layer}self_attn.q_proj.weight": (queries, 2 * hidden),
        f"{layer}self_attn.k_proj.weight": (kv, 2 * hidden),
        f"{layer}self_attn.v_proj.weight": (kv, 2 * hidden),
        f"{layer}self_attn.o_proj.weight": (hidden, queries),
        f"{layer}post_attention_layernorm.weight": (hidden,),
        f"{layer}mlp.gate_proj.weight": (inner, hidden),
        f"{layer}mlp.up_proj.weight": (inner, hidden),
        f"{layer}mlp.down_proj.weight": (hidden, inner),
        "norm.weight": (hidden,),
    }
    if not config.get("tie_word_embeddings"):
        shapes["lm_head.weight"] = (config.get("draft_vocab_size") or config["vocab_size"], hidden)
    if flags["norm_before_fc"]:
        shapes["input_norm.weight"] = (features * hidden,)
    if flags["fc_norm"]:
        shapes |= {f"fc_norm.{i}.weight": (hidden,) for i in range(features)}
    return shapes


def check_tensors(config: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> Check:
    """Names both ways, shapes, finite values. SGLang drops unknown names and leaves missing weights random, in silence."""
    if config.get("tie_word_embeddings") and config.get("draft_vocab_size") != config.get("vocab_size"):
        message = (
            f"tie_word_embeddings is true with {config.get('draft_vocab_size')} draft tokens of {config.get('vocab_size')}: "
            "SGLang would take the target's embedding for the head and drop lm_head.weight. Set it to false."
        )
        return broken("tensors", Kind.TENSORS, message)
    try:
        wanted = served_tensors(config)
    except (KeyError, TypeError, ZeroDivisionError) as error:
        message = f"config.json lacks a size or has one that makes no sense ({error}): the weights' shapes are unknown. Export again."
        return broken("tensors", Kind.ARCHITECTURE_FLAGS, message)
    allowed = {**wanted, "embed_tokens.weight": (config.get("vocab_size"), config["hidden_size"])}
    missing = sorted(set(wanted) - set(tensors))
    unexpected = sorted(set(tensors) - set(wanted) - _OPTIONAL)
    wrong = [
        f"{name} is {list(tensor.shape)}, not {list(allowed[name])}"
        for name, tensor in sorted(tensors.items())
        if name in allowed and tuple(tensor.shape) != allowed[name]
    ]
    unwritten = [name for name, tensor in sorted(tensors.items()) if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all())]
    groups = {"missing": missing, "unexpected": unexpected, "of another shape": wrong, "with values that are no numbers": unwritten}
    if not any(groups.values()):
        return passed("tensors", f"{len(tensors)} tensors, each one expected, finite and of its shape", {"matched": len(tensors)})
    found = "; ".join(f"{len(names)} {what}: {', '.join(names)}" for what, names in groups.items() if names)
    message = f"{len(set(tensors) & set(allowed))} tensors match. {found}. SGLang drops unknown and leaves missing ones random, in silence."
    return broken("tensors", _kind(groups, tensors, config), message, groups)


def _kind(groups: Mapping[str, list[str]], tensors: Mapping[str, torch.Tensor], config: Mapping[str, Any]) -> Kind:
    """A norm without its flag (or the reverse) is the flag's fault; an `fc` of another width one of the features'."""
    named = [*groups["missing"], *groups["unexpected"]]
    if groups["with values that are no numbers"]:
        return Kind.TENSORS
    if named and not groups["of another shape"] and all(name.startswith(_BY_FLAG) for name in named):
        return Kind.ARCHITECTURE_FLAGS
    fc = tensors.get("fc.weight")
    hidden = config["hidden_size"]
    whole_features = fc is not None and fc.dim() == 2 and fc.shape[0] == hidden and fc.shape[1] % hidden == 0
    by_width = all(line.startswith(("fc.weight", *_BY_FLAG)) for line in groups["of another shape"])
    if groups["of another shape"] and whole_features and by_width and all(name.startswith(_BY_FLAG) for name in named):
        return Kind.LAYER_BOUNDARIES
    return Kind.TENSORS


def check_vocabulary(config: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], target: TargetSizes) -> Check:
    """`d2t` against the sizes, the target's vocabulary and, where it is there, `t2d`."""
    draft, vocab, d2t = config.get("draft_vocab_size"), config.get("vocab_size"), tensors.get("d2t")
    numbers = {"draft_size": draft, "vocab_size": vocab, "target_size": target.vocab_size}
    if vocab != target.vocab_size:
        message = f"vocab_size is {vocab}, the target's is {target.vocab_size}. This is another target's drafter."
        return broken("vocabulary map", Kind.VOCAB_MAP, message, numbers)
    if d2t is None and draft == vocab:
        return passed("vocabulary map", "the draft vocabulary is the target's", numbers)
    if d2t is None or d2t.dim() != 1 or len(d2t) != draft:
        message = f"{draft} draft tokens of {vocab}, and d2t {'is missing' if d2t is None else f'has shape {list(d2t.shape)}'}."
        return broken("vocabulary map", Kind.VOCAB_MAP, f"{message} SGLang would take draft ids for target ids. Export again.", numbers)
    return check_map(d2t, target_size=target.vocab_size, t2d_V=tensors.get("t2d"))


def canonical(name: str) -> str:
    """A tensor's name as the contract has it (`layers.0.…`), from any that SGLang's loader understands."""
    for old, new in _LEGACY.items():
        name = name.replace(old, new)
    return name.removeprefix("model.")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(read_small(path))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(str(path), found=f"no JSON ({error})", expected="a drafter's config", do="Export the drafter again.") from error
    if not isinstance(value, dict):
        raise BadInput(str(path), found=type(value).__name__, expected="a drafter's config", do="Export the drafter again.")
    return value


def _read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Every tensor, by canonical name. Raises BadInput: cut short, no safetensors, or the same tensor twice."""
    try:
        with safe_open(path, framework="pt") as file:
            names = {name: canonical(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
            if len(set(names.values())) != len(names):
                raise BadInput(str(path), found="a tensor under two names", expected="each one once", do="Export the drafter again.")
            return {short: file.get_tensor(name) for name, short in names.items()}
    except (SafetensorError, OSError) as error:
        raise BadInput(
            str(path), found=f"no whole safetensors file ({error})", expected="the drafter's weights", do="Copy or export it again."
        ) from error
