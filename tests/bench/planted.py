"""The faults of `facts/speculators.md`, planted in a copy of a real drafter's folder, in what it is fed, or in what an engine computes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from tasks.verify.drafter import Drafter
from tasks.wiring.families import family_of_config
from tasks.wiring.record import WiringRecord
from tasks.wiring.target import TargetFacts, TargetForward
from tasks.wiring.translate import sglang_ids
from tests.bench.drafter import Benched
from tests.faults.mutants import MUTANTS, Tamper, settings, weights

Feed = Callable[[torch.Tensor, Sequence[int], TargetForward], torch.Tensor]
"""Features [T, n+1, H] at the boundaries and the last one, as what a faulty server feeds [T, n, H]."""


@dataclass(frozen=True)
class Planted:
    """`kind` and `said`: what `verify` has to answer; `said` stands in the hypothesis or the message.

    `folder` tampers with a copy. `engine` and `fed` (boundaries) say what a server computes where no folder holds the fault, or
    where the folder is refused before anything is computed. `feed` changes the features.
    """

    name: str
    kind: str | None = None
    said: str = ""
    folder: Tamper | None = None
    engine: Callable[[Drafter], Drafter] | None = None
    fed: tuple[int, ...] | None = None
    feed: Feed | None = None

    @property
    def in_engine(self) -> bool:
        """Nothing on disk shows it: a server's own logits do."""
        return self.engine is not None and self.folder is None


@dataclass(frozen=True)
class Feeding:
    """A target whose server feeds its features otherwise. Last states, which only labels are made from, stay right."""

    target: TargetForward
    feed: Feed

    @property
    def facts(self) -> TargetFacts:
        return self.target.facts

    def start(self) -> None:
        self.target.start()

    def extend(
        self, tokens_T: torch.Tensor, boundaries: Sequence[int], last_logits: int | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        last = self.facts.num_layers
        logits, right = self.target.extend(tokens_T, [*boundaries, last], last_logits)
        fed = self.feed(right, boundaries, self.target)
        labels = torch.tensor([boundary == last for boundary in boundaries])[None, :, None]
        return logits, torch.where(labels, right[:, :-1], fed)

    def crop(self, length: int) -> None:
        self.target.crop(length)

    def norm(self, last_state_TH: torch.Tensor) -> torch.Tensor:
        return self.target.norm(last_state_TH)

    def head(self, last_state_TH: torch.Tensor) -> torch.Tensor:
        return self.target.head(last_state_TH)

    def embedding(self) -> torch.Tensor:
        return self.target.embedding()


def planted(benched: Benched) -> list[Planted]:
    """The healthy drafter first, then the faults."""
    record = WiringRecord.read(benched.drafter)
    assert record.draft is not None, "an exported drafter's record holds its architecture"
    theta, output = record.draft.rope.theta, record.draft.norm_output
    return [
        Planted("none"),
        *_boundaries(benched, record.features.boundaries, record.target.num_layers),
        Planted("d2t read as ids", "vocab-map", "d2t holds ids", _mutant("d2t holds ids"), _maps(lambda ids: ids - torch.arange(len(ids)))),
        Planted("d2t ignored", "vocab-map", "d2t", _mutant("d2t is all zero"), _maps(lambda ids: torch.arange(len(ids)))),
        *(Planted(f"RoPE theta {wrong:g}", "rope", f"RoPE theta {theta:g}", _theta(wrong)) for wrong in (theta / 10, theta * 5)),
        Planted("norm_output flipped", "architecture-flags", "norm_output flipped", settings(norm_output=not output)),
        Planted(
            "norm_before_residual flipped",
            "architecture-flags",
            "norm_before_residual",
            settings(norm_before_residual=True),
            lambda drafter: drafter.changed(norm_before_residual=True),
        ),
        Planted("embedding and hidden swapped", "architecture-flags", "swapped", weights(_halves)),
        Planted("head rows off by one", "tensors", "head rows rotated by 1", _mutant("head rows rotated")),
        Planted("no head", "tensors", "lm_head.weight", _mutant("no head")),
        Planted("random draft", "tensors", "the weights or the data are others", weights(_random)),
        *(_skipped(name, norm) for name, norm in _NORMS.items()),
    ]


def _boundaries(benched: Benched, fed: Sequence[int], layers: int) -> list[Planted]:
    config = benched.target.folder / "config.json"
    family = family_of_config(json.loads(config.read_text()), str(config))
    kind, trained = "layer-boundaries", f"the drafter was trained on {list(fed)}"
    middle = fed[len(fed) // 2]

    def ids(*boundaries: int) -> Tamper:
        return _ids(sglang_ids(boundaries, family, layers))

    return [
        Planted("every layer +1", kind, trained, ids(*(b + 1 for b in fed))),
        Planted("every layer -1", kind, trained, ids(*(b - 1 for b in fed))),
        Planted("last three layers", kind, trained, ids(*range(layers - 3, layers))),
        Planted(
            "one layer three times",
            kind,
            f"boundaries [{middle}]",
            _ids([sglang_ids(fed, family, layers)[len(fed) // 2]] * len(fed)),
            fed=(middle,) * 3,
        ),
        Planted("order high, mid, low", kind, "in the order [2, 1, 0]", _mutant("features in reverse")),
        Planted("order mid, low, high", kind, "in the order [1, 0, 2]", _mutant("two features swapped")),
        Planted("high feature = normed last", "features", "normed or shifted", feed=_normed(fed[-1])),
        Planted("feature one late", "features", "normed or shifted", feed=lambda right, boundaries, target: right[:, :-1].roll(1, 0)),
        Planted("feature one early", "features", "normed or shifted", feed=lambda right, boundaries, target: right[:, :-1].roll(-1, 0)),
    ]


_NORMS = {
    "hidden norm skipped": "layers.0.hidden_norm.weight",
    "final norm skipped": "norm.weight",
    "input norm skipped": "layers.0.input_layernorm.weight",
}


def _skipped(name: str, norm: str) -> Planted:
    return Planted(name, engine=lambda drafter: drafter.changed(left_out=frozenset({norm})))


def _mutant(name: str) -> Tamper:
    return next(mutant.tamper for mutant in MUTANTS if mutant.name == name)


def _ids(ids: list[int]) -> Tamper:
    def tamper(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        settings(eagle_config={**config["eagle_config"], "eagle_aux_hidden_state_layer_ids": ids})(folder)

    return tamper


def _theta(value: float) -> Tamper:
    return settings(rope_parameters={"rope_type": "default", "rope_theta": value})


def _maps(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Drafter], Drafter]:
    return lambda drafter: drafter.changed(target_ids_V=change(drafter.target_ids_V))


def _normed(high: int) -> Feed:
    def feed(right_TnH: torch.Tensor, boundaries: Sequence[int], target: TargetForward) -> torch.Tensor:
        at = torch.tensor([boundary == high for boundary in boundaries])[None, :, None]
        return torch.where(at, target.norm(right_TnH[:, -1])[:, None], right_TnH[:, :-1])

    return feed


def _halves(w: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    names = [name for name in w if any(f"self_attn.{which}_proj.weight" in name for which in "qkv")]
    return {name: torch.cat(w[name].chunk(2, 1)[::-1], 1) for name in names}


def _random(w: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    drawn = [name for name in sorted(w) if "proj" in name or name == "fc.weight"]
    return {name: (torch.randn(w[name].shape, generator=generator) * 0.02).to(w[name].dtype) for name in drawn}
