"""The features that a server would feed, and where else they could have come from."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from tasks.verdict import Check, Outcome
from tasks.verify.hypotheses import name_boundaries
from tasks.verify.results import HeldOut
from tasks.wiring.kinds import Kind
from tasks.wiring.probes import Probe
from tasks.wiring.target import TargetForward

# A stored feature is rounded to bfloat16 (relative error 2^-9 at most) and may come from a target that computed in
# bfloat16; neighbouring boundaries of a trained target differ by far more. A cosine to be asked for of K6.
_SAME = 0.999


class Features:
    """Features of conversations at `fed`, the boundaries that a server feeds; the given ones where they were captured there."""

    def __init__(self, target: TargetForward, fed: Sequence[int], captured: Sequence[int] | None) -> None:
        self.target, self.fed = target, list(fed)
        self._given_are_fed = captured is not None and list(captured) == self.fed

    @torch.inference_mode()
    def of(self, item: HeldOut) -> tuple[torch.Tensor, torch.Tensor]:
        """Features [S, n, H] and the last state [S, H] before the final norm, float32."""
        last = self.target.facts.num_layers
        if item.features_SnH is not None and item.last_state_SH is not None and self._given_are_fed:
            return item.features_SnH.float(), item.last_state_SH.float()
        computed = self.at(item.tokens, [*self.fed, last])
        return computed[:, :-1], computed[:, -1] if item.last_state_SH is None else item.last_state_SH.float()

    @torch.inference_mode()
    def at(self, tokens: Sequence[int], boundaries: Sequence[int]) -> torch.Tensor:
        """Features [S, n, H] at any boundaries, float32."""
        self.target.start()
        return self.target.extend(torch.tensor(list(tokens)), boundaries, last_logits=1)[1].float()

    @torch.inference_mode()
    def nearest(self, probe: Probe) -> list[tuple[int, float]]:
        """For each of a probe's features the boundary of this target that is nearest to it, and their mean cosine."""
        everywhere = self.at(probe.token_ids_S.tolist(), range(self.target.facts.num_layers + 1))
        found = []
        for feature_SH in probe.features_SnH.float().unbind(1):
            cosines = torch.cosine_similarity(feature_SH[:, None], everywhere, dim=-1).mean(0)
            found.append((int(cosines.argmax()), float(cosines.max())))
        return found

    def check(self, probes: Sequence[Probe], what_to_set: Callable[[list[int]], str]) -> Check:
        """The features that the drafter was trained on are those of this target at the boundaries that a server feeds."""
        nearest = self.nearest(probes[0])
        boundaries, worst = [boundary for boundary, _ in nearest], min(cosine for _, cosine in nearest)
        numbers: dict[str, object] = {"fed": self.fed, "nearest": boundaries, "cosines": [cosine for _, cosine in nearest]}
        if worst < _SAME:
            message = (
                f"The trained features are none of this target's: the nearest boundaries {boundaries} reach a cosine of {worst:.4f} only "
                f"(at least {_SAME}). Was it trained on another target, or on normed or shifted states?"
            )
            return Check(name="features", verdict=Outcome.FAIL, kind=Kind.FEATURES, message=message, numbers=numbers)
        if boundaries != self.fed:
            numbers["hypothesis"] = name_boundaries(self.fed, boundaries, self.target.facts.num_layers)
            message = f"The server feeds boundaries {self.fed}; the drafter was trained on {boundaries}. {what_to_set(boundaries)}"
            return Check(name="features", verdict=Outcome.FAIL, kind=Kind.LAYER_BOUNDARIES, message=message, numbers=numbers)
        message = f"trained on what the target computes at boundaries {self.fed} (cosine at least {worst:.5f})"
        return Check(name="features", verdict=Outcome.PASS, message=message, numbers=numbers)
