"""The known mis-wirings, each as a change that would undo it (`facts/faults.md`, K1, K2, K4, K6, K8; K3 for the head)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from tasks.verify.drafter import Drafter
from tasks.wiring.boundaries import default_boundaries
from tasks.wiring.kinds import Kind
from tasks.wiring.record import Rope

# Bases that released Llama, Qwen and Kimi models use.
_THETAS = (1e4, 5e4, 1e5, 5e5, 1e6, 1e7)
# All orders of so many features; of more only those that exchange two, and the reverse.
_PERMUTED = 4
_LAYER = "layers.0."
IDS_STORED = "d2t holds ids, not offsets"
_NORMS = (f"{_LAYER}hidden_norm.weight", f"{_LAYER}input_layernorm.weight", f"{_LAYER}post_attention_layernorm.weight", "norm.weight")


@dataclass(frozen=True)
class Wiring:
    """How a drafter is connected. `boundaries` feed it in this order; `late` shifts features to later positions.

    `normed_last`: the last feature is the last state after the final norm. `advance`: see `Drafter.unroll`.
    """

    drafter: Drafter
    boundaries: tuple[int, ...]
    order: tuple[int, ...]
    late: int = 0
    normed_last: bool = False
    advance: int = 1


@dataclass(frozen=True)
class Hypothesis:
    """`change` makes the wiring that is declared into the one that was trained, if this is the fault."""

    name: str
    kind: Kind
    change: Callable[[Wiring], Wiring]
    do: str


def hypotheses(declared: Wiring, num_layers: int, what_to_set: Callable[[list[int]], str]) -> list[Hypothesis]:
    """Every known mis-wiring of this drafter, none of them the declared wiring itself.

    `what_to_set(boundaries)`: what to write into the config so that a server feeds these.
    """
    return [
        *_boundaries(declared, num_layers, what_to_set),
        *_orders(declared),
        *_features(),
        *_vocabulary(declared.drafter),
        *_rope(declared.drafter),
        *_flags(declared.drafter),
        *_weights(declared.drafter),
    ]


def boundary_lists(fed: Sequence[int], num_layers: int) -> dict[str, list[int]]:
    """Name to boundaries that engines or trainers are known to have taken instead of `fed`; each list once."""
    count, fed = len(fed), list(fed)
    named = {
        "boundaries one too low": [b + 1 for b in fed],
        "boundaries one too high": [b - 1 for b in fed],
        "trained on the engine's default": default_boundaries(num_layers)[:count],
        "trained on the embedding and all but the last": [0, *fed[:-1]],
        "trained on the embedding in place of the first": [0, *fed[1:]],
        "trained on the last boundaries": list(range(num_layers - count + 1, num_layers + 1)),
        "trained on the last boundaries but the final one": list(range(num_layers - count, num_layers)),
        **{f"trained on boundary {b} repeated": [b] * count for b in fed},
        **{f"feature {i} one too low": [b + (i == j) for j, b in enumerate(fed)] for i in range(count)},
        **{f"feature {i} one too high": [b - (i == j) for j, b in enumerate(fed)] for i in range(count)},
    }
    seen, kept = {tuple(fed)}, {}
    for name, boundaries in named.items():
        possible = len(boundaries) == count and all(0 <= b <= num_layers for b in boundaries)
        if possible and tuple(boundaries) not in seen:
            seen.add(tuple(boundaries))
            kept[name] = boundaries
    return kept


def name_boundaries(fed: Sequence[int], trained: Sequence[int], num_layers: int) -> str:
    """The known mis-wiring by which a server feeds `fed` to a drafter that was trained on `trained`."""
    known = {tuple(boundaries): name for name, boundaries in boundary_lists(fed, num_layers).items()}
    if tuple(trained) in known:
        return known[tuple(trained)]
    if sorted(trained) == sorted(fed):
        return f"features in the order {[list(fed).index(boundary) for boundary in trained]}"
    return f"trained on boundaries {list(trained)}"


def _boundaries(declared: Wiring, num_layers: int, what_to_set: Callable[[list[int]], str]) -> Iterator[Hypothesis]:
    fed = list(declared.boundaries)
    for name, boundaries in boundary_lists(fed, num_layers).items():
        do = f"The server feeds boundaries {fed}; the drafter was trained on {boundaries}. {what_to_set(boundaries)}"
        yield Hypothesis(name, Kind.LAYER_BOUNDARIES, _replacing(boundaries=tuple(boundaries)), do)
    do = "The drafter was trained on the last state after the final norm, which no server feeds. Capture again, before the norm."
    yield Hypothesis("last feature is the normed last state", Kind.FEATURES, _replacing(normed_last=True), do)


def _orders(declared: Wiring) -> Iterator[Hypothesis]:
    for order in _permutations(len(declared.boundaries)):
        trained = [declared.boundaries[i] for i in order]
        do = f"The server feeds boundaries {list(declared.boundaries)}; the drafter takes them as {trained}. Permute the columns of fc."
        yield Hypothesis(f"features in the order {list(order)}", Kind.LAYER_BOUNDARIES, _replacing(order=order), do)


def _permutations(count: int) -> list[tuple[int, ...]]:
    identity = tuple(range(count))
    if count <= _PERMUTED:
        return [order for order in itertools.permutations(identity) if order != identity]
    swaps = [tuple(b if i == a else a if i == b else i for i in identity) for a, b in itertools.combinations(identity, 2)]
    return [*swaps, identity[::-1]]


def _features() -> Iterator[Hypothesis]:
    for late, word in ((1, "late"), (-1, "early")):
        do = f"The drafter was trained on features one position {word}. Align feature t with token t+1 and capture again."
        yield Hypothesis(f"features one position {word}", Kind.FEATURES, _replacing(late=late), do)
    do = "All draft steps were trained at the position of the first one. Advance positions by one per step."
    yield Hypothesis("positions do not advance", Kind.ROPE, _replacing(advance=0), do)


def _vocabulary(drafter: Drafter) -> Iterator[Hypothesis]:
    identity = torch.arange(len(drafter.target_ids_V), device=drafter.target_ids_V.device)
    stored = drafter.target_ids_V - identity
    if bool((stored == 0).all()):
        return
    if int(stored.min()) >= 0:
        do = "d2t holds target ids; engines read offsets. Store target id - draft id."
        yield Hypothesis(IDS_STORED, Kind.VOCAB_MAP, _drafter(target_ids_V=stored), do)
    do = "Draft ids are target ids, and d2t maps them elsewhere. Store zeros, or train with this map."
    yield Hypothesis("d2t was ignored in training", Kind.VOCAB_MAP, _drafter(target_ids_V=identity), do)


def _rope(drafter: Drafter) -> Iterator[Hypothesis]:
    rope = drafter.architecture.rope
    for theta in _THETAS:
        tried = Rope(theta=theta, head_dim=rope.head_dim)
        if tried != rope:
            do = f"config.json resolves to RoPE theta {rope.theta:g}; the drafter was trained with {theta:g}. Set rope_parameters."
            yield Hypothesis(f"RoPE theta {theta:g}", Kind.ROPE, _drafter(rope=tried), do)


def _flags(drafter: Drafter) -> Iterator[Hypothesis]:
    a = drafter.architecture
    for flag in ("norm_output", "norm_before_residual"):
        value = getattr(a, flag)
        do = f"config.json says {flag} {str(value).lower()}; the drafter was trained with {str(not value).lower()}. Set it as trained."
        if flag == "norm_before_residual" and not value:
            do = "The drafter was trained with norm_before_residual, which SGLang cannot serve. Train without it."
        yield Hypothesis(f"{flag} flipped", Kind.ARCHITECTURE_FLAGS, _drafter(**{flag: not value}), do)
    for flag in ("norm_before_fc", "fc_norm"):
        if getattr(a, flag):
            do = f"config.json says {flag} true; the drafter was trained without it. Set it to false and leave its weights out."
            yield Hypothesis(f"{flag} flipped", Kind.ARCHITECTURE_FLAGS, _drafter(**{flag: False}), do)
    for norm in _NORMS:
        name = norm.removeprefix(_LAYER).removesuffix(".weight")
        do = f"The drafter was trained without {name}, which every engine applies. Mend the trainer."
        yield Hypothesis(f"{name} left out in training", Kind.ARCHITECTURE_FLAGS, _drafter(left_out=frozenset({norm})), do)


def _weights(drafter: Drafter) -> Iterator[Hypothesis]:
    names = [f"{_LAYER}self_attn.{which}_proj.weight" for which in "qkv"]
    swapped = {name: torch.cat(drafter.weights[name].chunk(2, 1)[::-1], 1) for name in names}
    do = "The layer takes [embedding, hidden]; this one was trained on [hidden, embedding]. Swap the halves of q, k and v."
    yield Hypothesis("embedding and hidden swapped", Kind.ARCHITECTURE_FLAGS, _drafter(weights=swapped), do)
    for by in (1, -1):
        head = {"lm_head.weight": drafter.weights["lm_head.weight"].roll(by, 0)}
        do = f"The rows of lm_head are off by {-by}. Export the drafter again."
        yield Hypothesis(f"head rows rotated by {-by}", Kind.TENSORS, _drafter(weights=head), do)


def _replacing(**fields: object) -> Callable[[Wiring], Wiring]:
    return lambda wiring: replace(wiring, **fields)  # type: ignore[arg-type]


def _drafter(**fields: object) -> Callable[[Wiring], Wiring]:
    return lambda wiring: replace(wiring, drafter=wiring.drafter.changed(**fields))  # type: ignore[arg-type]
