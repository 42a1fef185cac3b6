"""The known mis-wirings once more, as what a server does with a drafter that was trained rightly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from tasks.verify.hypotheses import IDS_STORED, Wiring, hypotheses, name_boundaries
from tasks.wiring.boundaries import default_boundaries
from tasks.wiring.kinds import Kind

# What to look at on the server, where the drafter itself is as it was trained.
_LOOK = {
    Kind.FEATURES: "Compare the server's version and its model code with those that the drafter was proved with.",
    Kind.VOCAB_MAP: "Compare d2t in the served folder with the checkpoint's (offsets: target id = draft id + d2t), and the token map.",
    Kind.ROPE: "Compare rope_parameters in the served config.json with the checkpoint's.",
    Kind.ARCHITECTURE_FLAGS: "Compare the norm flags in the served config.json with the checkpoint's.",
    Kind.TENSORS: "Compare the served folder's tensors with the checkpoint's, by name and by hash.",
}


@dataclass(frozen=True)
class Way:
    """One way in which a drafter can be served. `wiring` None = no draft is ever right."""

    name: str
    kind: Kind
    do: str
    wiring: Wiring | None


def ways(trained: Wiring, num_layers: int, what_to_set: Callable[[list[int]], str]) -> list[Way]:
    """Every known mis-wiring that a server can have. `what_to_set`: see `hypotheses`."""
    nothing = "Are its tensors' names those that the server looks for (its log tells what it dropped), and is the algorithm EAGLE3?"
    return [
        # First, since others may give no right draft either.
        Way("no draft is ever right, as with weights that were not loaded", Kind.TENSORS, nothing, None),
        *_other_boundaries(trained, num_layers, what_to_set),
        *_ids_added_twice(trained),
        *_as_hypotheses(trained, num_layers, what_to_set),
    ]


def fed_lists(trained: Sequence[int], num_layers: int) -> list[list[int]]:
    """Ascending boundaries that servers are known to feed instead of `trained`; each list once."""
    count, default = len(trained), default_boundaries(num_layers)
    explicit = [boundary + 1 for boundary in default]  # the default's numbers, given as explicit ids on the llama family
    lists = [
        [boundary + 1 for boundary in trained],
        [boundary - 1 for boundary in trained],
        default,
        explicit,
        *([*trained[1:], last] for last in (default[-1], explicit[-1])),
        list(range(num_layers - count, num_layers)),
        *([boundary + by * (i == j) for j, boundary in enumerate(trained)] for i in range(count) for by in (1, -1)),
    ]
    kept: list[list[int]] = []
    for fed in lists:
        possible = len(fed) == count and fed == sorted(set(fed)) and fed[0] >= 0 and fed[-1] < num_layers
        if possible and fed != list(trained) and fed not in kept:
            kept.append(fed)
    return kept


def _other_boundaries(trained: Wiring, num_layers: int, what_to_set: Callable[[list[int]], str]) -> Iterator[Way]:
    boundaries = list(trained.boundaries)
    for fed in fed_lists(boundaries, num_layers):
        do = f"The server feeds boundaries {fed}; the drafter was trained on {boundaries}. {what_to_set(boundaries)}"
        yield Way(name_boundaries(fed, boundaries, num_layers), Kind.LAYER_BOUNDARIES, do, replace(trained, boundaries=tuple(fed)))


def _ids_added_twice(trained: Wiring) -> Iterator[Way]:
    """The served folder stores target ids where the server adds offsets."""
    ids_V = trained.drafter.target_ids_V
    offsets_V = ids_V - torch.arange(len(ids_V), device=ids_V.device)
    if bool((offsets_V != 0).any()):
        drafter = trained.drafter.changed(target_ids_V=2 * ids_V - offsets_V)
        yield Way(IDS_STORED, Kind.VOCAB_MAP, _LOOK[Kind.VOCAB_MAP], replace(trained, drafter=drafter))


def _as_hypotheses(trained: Wiring, num_layers: int, what_to_set: Callable[[list[int]], str]) -> Iterator[Way]:
    """Those that are the same seen from both sides, or nearly. In the diagnosis the question is what was trained, here what is served."""
    for hypothesis in hypotheses(trained, num_layers, what_to_set):
        wiring = hypothesis.change(trained)
        if hypothesis.kind is Kind.LAYER_BOUNDARIES or wiring.normed_last or wiring.advance != 1:
            continue
        name = hypothesis.name.removesuffix(" in training")
        name = "d2t offsets read as ids" if name == IDS_STORED else name.replace("was ignored", "ignored")
        yield Way(name, hypothesis.kind, _LOOK[hypothesis.kind], wiring)
