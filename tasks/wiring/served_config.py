"""What SGLang 0.5.23 makes of each key of a drafter's config.json; one check per kind of fault."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tasks.verdict import BadInput, Check, Outcome
from tasks.wiring.families import Family, family_of_config, text_config
from tasks.wiring.kinds import Kind
from tasks.wiring.rope import resolve, says_theta
from tasks.wiring.translate import sglang_boundaries, sglang_default_boundaries, sglang_ids

IDS = "eagle_aux_hidden_state_layer_ids"
# llama_eagle3.py:126-134: the number of features where neither num_aux_hidden_states nor a list says it.
_FEATURES_UNSAID = 3
_FLOATS = ("bfloat16", "float16", "float32")


@dataclass(frozen=True)
class TargetSizes:
    """What of the target's config.json a drafter has to fit."""

    family: Family
    num_layers: int
    hidden_size: int
    vocab_size: int
    quantisation: str | None
    config: Mapping[str, Any]

    @classmethod
    def of(cls, config: Mapping[str, Any], where: str = "the target's config.json") -> TargetSizes:
        """Raises BadInput for an unsupported family, or a config without sizes."""
        found, inner = family_of_config(config, where), text_config(config)
        try:
            layers, hidden, vocab = (int(inner[key]) for key in ("num_hidden_layers", "hidden_size", "vocab_size"))
        except (KeyError, TypeError, ValueError) as error:
            raise BadInput(where, found=f"no {error}", expected="the sizes of a language model", do="Name another target.") from error
        quantisation = config.get("quantization_config") or inner.get("quantization_config")
        return cls(found, layers, hidden, vocab, str(quantisation.get("quant_method", "some")) if quantisation else None, inner)


def passed(name: str, message: str, numbers: Mapping[str, Any] | None = None) -> Check:
    """A check that found nothing."""
    return Check(name=name, verdict=Outcome.PASS, message=message, numbers=dict(numbers or {}))


def broken(name: str, kind: Kind, message: str, numbers: Mapping[str, Any] | None = None, *, warn: bool = False) -> Check:
    """A check that found a fault, or with `warn` something to look at."""
    return Check(name=name, verdict=Outcome.WARN if warn else Outcome.FAIL, kind=kind, message=message, numbers=dict(numbers or {}))


def eagle(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """`eagle_config`, empty where there is none."""
    section = config.get("eagle_config")
    return section if isinstance(section, Mapping) else {}


def flags(config: Mapping[str, Any]) -> dict[str, bool]:
    """The norm flags as SGLang resolves them (llama_eagle3.py:141-170): only norm_before_fc is looked for in eagle_config."""
    return {
        "norm_before_fc": bool(eagle(config).get("norm_before_fc", config.get("norm_before_fc", False))),
        "fc_norm": bool(config.get("fc_norm") or config.get("use_aux_norm", False)),
        "norm_output": bool(config.get("norm_output", False)),
    }


def num_features(config: Mapping[str, Any]) -> int:
    """The number of features that SGLang builds `fc` for."""
    ids = eagle(config).get(IDS)
    return int(config.get("num_aux_hidden_states") or (len(ids) if ids else _FEATURES_UNSAID))


def check_flags(config: Mapping[str, Any], target_hidden_size: int) -> Check:
    """Keys that SGLang cannot serve, or ignores where they stand."""
    hidden = config.get("hidden_size")
    complaints = [
        complaint
        for wrong, complaint in (
            (config.get("model_type") != "llama", f"model_type is {config.get('model_type')!r}: SGLang's drafter has a llama layer"),
            (config.get("num_hidden_layers") != 1, f"num_hidden_layers is {config.get('num_hidden_layers')}: one layer is expected"),
            (config.get("hidden_act", "silu") != "silu", f"hidden_act is {config.get('hidden_act')!r}: only silu can be served"),
            ("draft_vocab_size" not in config, "draft_vocab_size is missing: SGLang crashes without the key"),
            (
                "draft_vocab_size" in config and not isinstance(config["draft_vocab_size"], int),
                f"draft_vocab_size is {config.get('draft_vocab_size')!r}: with null SGLang takes the target's head",
            ),
            (
                bool(config.get("norm_before_residual")) or bool(eagle(config).get("norm_before_residual")),
                "norm_before_residual is true: SGLang always keeps the un-normed residual",
            ),
            (bool(config.get("attention_bias")), "attention_bias is true: SGLang's qkv has no bias"),
            (bool(config.get("mlp_bias")), "mlp_bias is true: SGLang's MLP has no bias"),
            (bool(config.get("bias")), "bias is true: it gives a bias to SGLang's o_proj too, which no drafter has"),
            (
                eagle(config).get("use_aux_hidden_state", True) is not True,
                "eagle_config.use_aux_hidden_state is not true: SGLang would feed the last state alone",
            ),
            *(
                (
                    bool(eagle(config).get(key)) and key not in config,
                    f"{key} stands in eagle_config, where SGLang does not look: put it at the top",
                )
                for key in ("fc_norm", "norm_output", "use_aux_norm")
            ),
            (flags(config)["fc_norm"] and flags(config)["norm_before_fc"], "fc_norm and norm_before_fc are both true"),
            (
                (config.get("target_hidden_size") or hidden) != hidden or hidden != target_hidden_size,
                f"hidden_size is {hidden} (target_hidden_size {config.get('target_hidden_size')}), the target's is {target_hidden_size}: "
                "SGLang shares the target's embedding only between equal sizes",
            ),
        )
        if wrong
    ]
    if complaints:
        message = f"config.json asks for what SGLang does not serve: {'; '.join(complaints)}. Train or export with what it serves."
        return broken("architecture flags", Kind.ARCHITECTURE_FLAGS, message, {"complaints": complaints})
    return passed("architecture flags", f"every flag can be served: {flags(config)}", flags(config))


def fed_boundaries(config: Mapping[str, Any], target: TargetSizes) -> list[int]:
    """The ordered boundaries that SGLang will feed. Raises BadInput where it stops, or where the ids are no list of integers."""
    ids = eagle(config).get(IDS)
    if not ids:
        return sglang_default_boundaries(target.num_layers)
    if not isinstance(ids, list) or any(isinstance(i, bool) or not isinstance(i, int) for i in ids):
        raise BadInput(f"eagle_config.{IDS}", found=ids, expected="a list of whole numbers", do="Export the drafter again.")
    return sglang_boundaries(ids, target.family, target.num_layers, f"eagle_config.{IDS}")


def check_boundaries_fed(config: Mapping[str, Any], target: TargetSizes) -> Check:
    """The list of ids by itself: what SGLang would drop, reorder, or replace by its default."""
    name, kind, ids = "layer boundaries", Kind.LAYER_BOUNDARIES, eagle(config).get(IDS)
    try:
        fed = fed_boundaries(config, target)
    except BadInput as error:
        return broken(name, kind, str(error), {"ids": ids})
    numbers = {"ids": ids, "fed": fed, "num_layers": target.num_layers}
    if num_features(config) < 2:
        return broken(name, kind, "One single feature has the embedding's width, and SGLang skips fc then. Train on more.", numbers)
    if not ids:
        return _default_fed(config, fed, numbers)
    if num_features(config) != len(ids):
        message = (
            f"num_aux_hidden_states is {num_features(config)} for {len(ids)} ids: fc would be built for the wrong width. Mend the config."
        )
        return broken(name, kind, message, numbers)
    if len(fed) != len(ids):
        message = (
            f"Of the ids {ids} SGLang's {target.family.name} captures only boundaries {fed} (of 0..{target.num_layers - 1}), and drops"
        )
        return broken(name, kind, f"{message} the rest in silence. Train on boundaries that it serves.", numbers)
    canonical = sglang_ids(fed, target.family, target.num_layers)
    if canonical == ids:
        return passed(name, f"ids {ids} feed the boundaries {fed}", numbers)
    if target.family.name == "deepseek_v2" and ids[0] == 1:
        message = (
            f"SGLang adds one to every id of a list that begins with 1: {ids} feeds {fed}. If the drafter was trained on {sorted(ids)}"
        )
        return broken(name, kind, f"{message}, write {sglang_ids(sorted(ids), target.family, target.num_layers)}.", numbers, warn=True)
    message = f"The ids {ids} are not sorted: SGLang concatenates in layer order, boundaries {fed}, whatever the list's order is."
    return broken(name, kind, f"{message} Reorder the columns of fc, and write {canonical}.", numbers)


def _default_fed(config: Mapping[str, Any], fed: list[int], numbers: dict[str, Any]) -> Check:
    name, kind = "layer boundaries", Kind.LAYER_BOUNDARIES
    unread = config.get(IDS)
    if unread and list(unread) != fed:
        message = f"{IDS} {unread} stands at the top level, where SGLang does not look: it would feed its default, boundaries {fed}."
        return broken(name, kind, f"{message} Put the ids of this target's family into eagle_config.", numbers)
    if len(fed) != num_features(config):
        message = f"No ids, and SGLang's default {fed} are not the {num_features(config)} features of fc. Put the ids into eagle_config."
        return broken(name, kind, message, numbers)
    message = f"No ids in eagle_config: SGLang feeds its default, boundaries {fed}. Check that the drafter was trained on those."
    return broken(name, kind, message, numbers, warn=True)


def check_rope(config: Mapping[str, Any], of_target: float | None) -> Check:
    """RoPE as resolved; without a wiring record, another theta than the target's is something to look at.

    `of_target`: `theta_of` its config. Held-out text need not tell: another theta can cost less accuracy than it resolves.
    """
    try:
        rope = resolve(config)
    except BadInput as error:
        return broken("rope", Kind.ROPE, str(error))
    numbers = {"theta": rope.theta, "type": rope.type, "head_dim": rope.head_dim}
    if of_target is None:
        return passed("rope", f"theta {rope.theta:g}; the target's own cannot be compared", numbers)
    if rope.theta != of_target:
        said = "says" if says_theta(config) else "says no theta, so SGLang takes"
        message = f"config.json {said} {rope.theta:g}, the target's theta is {of_target:g}. Check what the drafter was trained with."
        return broken("rope", Kind.ROPE, message, {**numbers, "target_theta": of_target}, warn=True)
    return passed("rope", f"theta {rope.theta:g}, as the target's", numbers)


def check_context(config: Mapping[str, Any], context_length: int) -> Check:
    """Positions: SGLang's table of angles ends at max_position_embeddings."""
    length = config.get("max_position_embeddings")
    numbers = {"max_position_embeddings": length, "needed": context_length}
    if not isinstance(length, int) or length < context_length:
        message = f"The drafter ends at position {length}, {context_length} are asked for. Serve with a shorter context length."
        return broken("context length", Kind.CONTEXT_LENGTH, message, numbers)
    return passed("context length", f"{length} positions for {context_length}", numbers)


def check_dtype(config: Mapping[str, Any], tensor_dtypes: set[str], target: TargetSizes) -> Check:
    """dtype and quantisation are said, and true. `tensor_dtypes`: of the floating-point tensors, as torch names them."""
    name, kind = "dtype", Kind.DTYPE_QUANTISATION
    said = config.get("dtype") or config.get("torch_dtype")
    numbers = {"said": said, "stored": sorted(tensor_dtypes), "target_quantisation": target.quantisation}
    if config.get("quantization_config"):
        return broken(name, kind, "The drafter is quantised, which is not supported. Export it in bfloat16.", numbers)
    if not tensor_dtypes <= set(_FLOATS) or len(tensor_dtypes) > 1:
        message = f"The weights are {', '.join(sorted(tensor_dtypes))}: one dtype of {', '.join(_FLOATS)} is expected. Export again."
        return broken(name, kind, message, numbers)
    if said is not None and {said} != tensor_dtypes:
        return broken(name, kind, f"config.json says {said}, the weights are {', '.join(sorted(tensor_dtypes))}. Export again.", numbers)
    if said is None:
        message = "config.json says no dtype, so SGLang computes in float16. Say which one the weights have."
        return broken(name, kind, message, numbers, warn=True)
    if target.quantisation:
        message = f"The target is quantised ({target.quantisation}), and a drafter inherits it: set deploy.draft_quantisation."
        return broken(name, kind, message, numbers, warn=True)
    return passed(name, f"{said}, not quantised", numbers)


def check_window(config: Mapping[str, Any]) -> Check:
    """A window that training had and SGLang does not read from the config."""
    window = config.get("sliding_window")
    if "sliding_attention" in (config.get("layer_types") or []) or (window and config.get("use_sliding_window")):
        message = (
            f"The drafter has an attention window of {window}, SGLang attends in full. Serve with --speculative-draft-window-size {window}."
        )
        return broken("attention window", Kind.ATTENTION_MASK, message, {"window": window}, warn=True)
    return passed("attention window", "full attention")
