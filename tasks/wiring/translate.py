"""Boundaries in the numbers of each engine. What cannot be said in an engine's numbers is refused with the reason.

Only this module knows that speculators' id is the boundary itself and what a number means to SGLang 0.5.23, which
differs by family (`facts/sglang-families.md`). `tests/wiring/test_translate.py` runs SGLang's own code against it.
"""

from __future__ import annotations

from collections.abc import Sequence

from tasks.verdict import BadInput
from tasks.wiring.boundaries import check_boundaries, default_boundaries
from tasks.wiring.families import Family


def speculators_ids(boundaries: Sequence[int]) -> list[int]:
    """`eagle_aux_hidden_state_layer_ids` of a speculators 0.9.0 checkpoint: the boundaries themselves, 0..L."""
    return list(boundaries)


def boundaries_of_speculators(ids: Sequence[int]) -> list[int]:
    """The ordered boundaries of a speculators 0.9.0 checkpoint, as it lists them."""
    return list(ids)


def sglang_ids(boundaries: Sequence[int], family: Family, num_layers: int, where: str = "boundaries") -> list[int]:
    """What `eagle_config.eagle_aux_hidden_state_layer_ids` has to hold for SGLang to feed these boundaries, in this order.

    Raises BadInput for what SGLang cannot feed (see `check_boundaries`: the last boundary, another order, duplicates).
    """
    wanted = check_boundaries(boundaries, num_layers, where)
    if family.id_rule == "output-of-layer":
        return [boundary - 1 for boundary in wanted]
    if wanted[0] == 1:
        # deepseek_v2.py:3470 adds one to every id when the first is 1; the order of ids does not matter to it
        # otherwise, since features come in layer order.
        return [*wanted[1:], wanted[0]]
    return wanted


def sglang_boundaries(ids: Sequence[int], family: Family, num_layers: int, where: str = "eagle_aux_hidden_state_layer_ids") -> list[int]:
    """The ordered boundaries that SGLang feeds for explicit ids, right or wrong; fewer than ids where it drops some.

    Raises BadInput where SGLang itself stops with an error.
    """
    entries = _entries(ids, family)
    captured = sorted({_wrapped(entry, family, num_layers) for entry in entries} & set(range(num_layers)))
    complaint = _sglang_error(entries, captured, family, num_layers)
    if complaint:
        raise BadInput(where, found=list(ids), expected=f"ids that SGLang's {family.name} can capture", do=complaint)
    return captured


def sglang_default_boundaries(num_layers: int) -> list[int]:
    """The ordered boundaries that SGLang feeds when it finds no ids; for L < 8 it may feed fewer than three."""
    return sorted({boundary for boundary in default_boundaries(num_layers) if 0 <= boundary < num_layers})


def _entries(ids: Sequence[int], family: Family) -> list[int]:
    """SGLang's `layers_to_capture`: entry j takes the input of layer j, which is boundary j."""
    shifted = family.id_rule == "output-of-layer" or list(ids[:1]) == [1]
    return [i + 1 for i in ids] if shifted else list(ids)


def _wrapped(entry: int, family: Family, num_layers: int) -> int:
    """qwen2_moe.py:1153 indexes the list of layers, where a negative number counts from the end."""
    return entry + num_layers if family.name == "qwen3_moe" and entry < 0 else entry


def _sglang_error(entries: list[int], captured: list[int], family: Family, num_layers: int) -> str | None:
    if family.name == "qwen3_moe" and any(not -num_layers <= entry < num_layers for entry in entries):
        return "SGLang stops with an IndexError: an id points outside of the target's layers."
    if family.name == "deepseek_v2" and captured and len(captured) != len(entries):
        return "SGLang stops with a RuntimeError: it captures fewer features than ids were given."
    return None
