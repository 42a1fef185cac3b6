"""Boundaries, the one coordinate for layers: boundary k is the residual stream after k decoder blocks.

0 is the embedding output, L the last block's output before the final norm.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from tasks.verdict import BadInput


def default_boundaries(num_layers: int) -> list[int]:
    """[2, L//2, L-3]: the default of speculators 0.9.0 and, as boundaries, of SGLang 0.5.23."""
    return [2, num_layers // 2, num_layers - 3]


def check_boundaries(boundaries: Sequence[int], num_layers: int, where: str = "capture.boundaries") -> list[int]:
    """The list itself, if a drafter on it can be trained and served by any engine.

    Raises BadInput: fewer than two (SGLang skips `fc` where the width is the embedding's), not strictly
    ascending (engines capture in layer order), below 0, or at or above L (SGLang drops or refuses the last one).
    """
    found = list(boundaries)
    if len(found) < 2:
        raise BadInput(where, found=found, expected="at least two boundaries", do="With a single feature SGLang skips the drafter's fc.")
    if any(below >= above for below, above in itertools.pairwise(found)):
        raise BadInput(where, found=found, expected="strictly ascending boundaries", do="SGLang concatenates features in layer order.")
    if found[0] < 0 or found[-1] >= num_layers:
        raise BadInput(
            where,
            found=found,
            expected=f"boundaries within 0..{num_layers - 1} of a target with {num_layers} layers",
            do=f"Boundary {num_layers} (after the last block) cannot be served by SGLang: take at most {num_layers - 1}.",
        )
    return found
