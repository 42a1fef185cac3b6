"""Standalone ≡ served: what a server fed its drafter, and what the drafter made of it, pass by pass.

The passes are recorded inside of the server (`draftproof_sglang.probe`): the features that were really fed, and the logits
that were really computed from them. The features have to be the target's at the declared boundaries; given those very
features, the standalone drafter has to answer what the served one did.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from tasks.report import Report
from tasks.verdict import Check, Outcome, ProofFailed, Verdict
from tasks.verify import static
from tasks.verify.checkpoint import read_checkpoint
from tasks.verify.diagnosis import diagnose, explain
from tasks.verify.drafter import Drafter, load_drafter
from tasks.verify.features import Features
from tasks.verify.hypotheses import name_boundaries
from tasks.verify.memory import Cache
from tasks.wiring.kinds import Kind
from tasks.wiring.probes import PADDING, Probe
from tasks.wiring.target import TargetForward

MARGIN = 1e-3
"""By so much the cosine of a feature and its own boundary has to exceed that of the next best."""
_NAMES = {"input_ids_T", "positions_T", "fed_TH", "logits_LV"}


@dataclass(frozen=True)
class Pass:
    """One forward of the served drafter over T positions; `logits_LV` of the last L of them."""

    input_ids_T: torch.Tensor
    positions_T: torch.Tensor
    fed_TH: torch.Tensor
    logits_LV: torch.Tensor


def check_served(
    checkpoint: Path, target: TargetForward, recorded: Sequence[tuple[list[int], Path]], *, bound: float, device: str, report: Report
) -> list[Check]:
    """See `tasks.verify.verify_served`."""
    opened = read_checkpoint(checkpoint)
    record = static.read_record(opened)
    facts = static.examine(opened, record, target.facts, longest=0)
    declared = record.features.boundaries if record else facts.boundaries
    if declared is None or not facts.loadable:
        return list(facts.checks)
    drafter = load_drafter(opened, target.embedding(), device)
    checks: list[Check] = []
    for number, (prompt, folder) in enumerate(recorded):
        passes = read_passes(folder)
        found = [
            check_features(target, prompt, passes[0], declared, lambda b: static.what_to_set(b, opened.architecture, target.facts)),
            check_logits(drafter, passes, bound),
            check_chain(drafter, passes),
        ]
        if found[1].verdict is Outcome.FAIL:
            found = _explained(drafter, target, declared, prompt, passes, found, bound, report)
        checks += [check.model_copy(update={"name": f"{check.name}, probe {number}"}) for check in found]
    return checks


def _explained(
    drafter: Drafter,
    target: TargetForward,
    declared: Sequence[int],
    prompt: Sequence[int],
    passes: Sequence[Pass],
    found: list[Check],
    bound: float,
    report: Report,
) -> list[Check]:
    """The known mis-wiring that makes the standalone drafter answer as the served one did."""
    probe = as_probe(prompt, passes, drafter.architecture.hidden_size)
    if probe is None:
        return [check.model_copy(update={"kind": check.kind or Kind.TENSORS}) for check in found]
    diagnosis = diagnose(drafter, Features(target, declared, declared), [probe], [], bound=bound, report=report)
    return explain(found, diagnosis)


def read_passes(folder: Path) -> list[Pass]:
    """The passes of one probe request, in their order. Raises ProofFailed (INVALID) when nothing, or nothing readable, was recorded."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise _unproved(f"{folder}: nothing recorded. Is the server's environment ours, and its drafter of a supported architecture?")
    passes = []
    for file in files:
        try:
            tensors = load_file(file)
            passes.append(Pass(**{name: tensors[name] for name in _NAMES}))
        except (SafetensorError, OSError, KeyError) as error:
            raise _unproved(f"{file}: no recorded pass ({error}). Probe the server again.") from error
    return passes


def _unproved(message: str) -> ProofFailed:
    check = _check("probes recorded", Outcome.INVALID, message, {}, Kind.INVALID_MEASUREMENT)
    return ProofFailed(Verdict.of("deploy", [check], passed=""))


def check_features(
    target: TargetForward, prompt: Sequence[int], first: Pass, declared: Sequence[int], what_to_set: Callable[[list[int]], str]
) -> Check:
    """Each feature that was fed is nearest to its declared boundary among all of the target's, in order, with a margin.

    `first`: the pass over the whole prompt. `what_to_set(boundaries)`: how a server is made to feed these.
    """
    target.start()
    everywhere_SLH = target.extend(torch.tensor(list(prompt)), range(target.facts.num_layers + 1), last_logits=1)[1].float()
    fed_SnH = first.fed_TH.float().unflatten(-1, (-1, target.facts.hidden_size))
    cosines_nL = torch.stack([torch.cosine_similarity(fed_SH[:, None], everywhere_SLH, dim=-1).mean(0) for fed_SH in fed_SnH.unbind(1)])
    best = cosines_nL.topk(2, -1)
    nearest = best.indices[:, 0].tolist()
    margin = float((best.values[:, 0] - best.values[:, 1]).min())
    worst = max(float((fed_SnH[:, i] - everywhere_SLH[:, boundary]).abs().max()) for i, boundary in enumerate(nearest))
    numbers: dict[str, object] = {"declared": list(declared), "nearest": nearest, "margin": margin, "max_difference": worst}
    numbers["cosines"] = best.values[:, 0].tolist()
    if nearest != list(declared):
        named = _named(nearest, list(declared), target.facts.num_layers)
        message = (
            f"the server feeds boundaries {nearest}; the drafter was trained on {list(declared)} ({named}). {what_to_set(list(declared))}"
        )
        return _check("served features", Outcome.FAIL, message, {**numbers, "hypothesis": named}, Kind.LAYER_BOUNDARIES)
    if margin < MARGIN:
        message = f"two boundaries of the target are too alike on this prompt to tell which one is fed (margin {margin:.2g}): probe others"
        return _check("served features", Outcome.INVALID, message, numbers, Kind.INVALID_MEASUREMENT)
    message = f"the target's at boundaries {nearest}, in order (margin {margin:.3f}, largest difference {worst:.2g})"
    return _check("served features", Outcome.PASS, message, numbers)


@dataclass
class Compared:
    """Largest differences of a served drafter from the standalone one so far."""

    logits: float = 0.0
    spread: float = 1.0
    handed_on: float = 0.0
    positions: int = 0
    argmax_equal: int = 0


@torch.inference_mode()
def check_logits(drafter: Drafter, passes: Sequence[Pass], bound: float) -> Check:
    """The standalone drafter, given what the served one was fed, answers what that answered, and hands on what it was fed next.

    The difference of logits is compared with `bound`, and where they spread (standard deviation) by more than 1 with as much
    more; that of a hidden state handed on from one draft step to the next, in its own standard deviations, with `bound`.
    """
    found = _compared(drafter, passes)
    numbers: dict[str, object] = {
        "max_difference": found.logits,
        "bound": bound * found.spread,
        "handed_on_difference": found.handed_on,
        "positions": found.positions,
        "argmax_equal": found.argmax_equal,
    }
    if found.logits > bound * found.spread:
        message = (
            f"given what the server fed, its drafter's logits differ from the standalone ones by up to {found.logits:.3g} "
            f"(at most {bound * found.spread:.2g}), best tokens equal at {found.argmax_equal} of {found.positions}."
        )
        return _check("served logits", Outcome.FAIL, message, numbers)
    if found.handed_on > bound:
        message = (
            "what the served drafter hands from one draft step to the next is not the standalone one's hidden state: they differ by "
            f"up to {found.handed_on:.3g} standard deviations (at most {bound:.2g}), while each step's logits follow from it."
        )
        return _check("served logits", Outcome.FAIL, message, numbers)
    message = (
        f"largest logit difference {found.logits:.2g} over {found.positions} positions of {len(passes)} passes, "
        f"best tokens equal at {found.argmax_equal}"
    )
    return _check("served logits", Outcome.PASS, message, numbers)


def _compared(drafter: Drafter, passes: Sequence[Pass]) -> Compared:
    cache, width, found = Cache(drafter.architecture.attention_window), drafter.architecture.hidden_size, Compared()
    handed_on: dict[int, torch.Tensor] = {}
    """Hidden state by position, of the pass before: a round goes on from the last position that it committed."""
    for each in passes:
        cache.crop(int(each.positions_T[0]))
        fed_TH = each.fed_TH.float()
        drafted = fed_TH.shape[-1] == width
        state_H = handed_on.get(int(each.positions_T[0]) - 1)
        if drafted and len(fed_TH) == 1 and state_H is not None:
            found.handed_on = max(found.handed_on, float((fed_TH[0].cpu() - state_H).abs().max() / state_H.std()))
        hidden_TH = fed_TH if drafted else drafter.hidden(fed_TH.unflatten(-1, (-1, width)))
        final, hidden = drafter.step(each.input_ids_T[None], hidden_TH[None], each.positions_T[None], cache)
        handed_on = dict(zip(each.positions_T.tolist(), hidden[0].cpu(), strict=True))
        theirs_LV = each.logits_LV.float()
        ours_LV = drafter.logits(final[0, -len(theirs_LV) :]).cpu()
        found.logits = max(found.logits, float((ours_LV - theirs_LV).abs().max()))
        found.spread = max(found.spread, float(theirs_LV.std()))
        found.positions += len(theirs_LV)
        found.argmax_equal += int((ours_LV.argmax(-1) == theirs_LV.argmax(-1)).sum())
    return found


def check_chain(drafter: Drafter, passes: Sequence[Pass]) -> Check:
    """Each draft token that was fed on is the one that the pass before chose, by the declared vocabulary map. Chains alone."""
    followed = wrong = 0
    for before, after in pairwise(passes):
        if after.fed_TH.shape[-1] != drafter.architecture.hidden_size or len(after.input_ids_T) != 1:
            continue  # a new round begins
        followed += 1
        wrong += int(after.input_ids_T[0]) not in drafter.target_ids_V[before.logits_LV.argmax(-1)].tolist()
    numbers: dict[str, object] = {"followed": followed, "wrong": wrong}
    if not followed:
        message = "no draft token was fed on: the server drafted one step at a time. Probe with two draft steps or more."
        return _check("served draft tokens", Outcome.INVALID, message, numbers, Kind.INVALID_MEASUREMENT)
    if not wrong:
        return _check("served draft tokens", Outcome.PASS, f"{followed} draft tokens are what was chosen", numbers)
    message = (
        f"{wrong} of {followed} draft tokens are not what the drafter chose by its vocabulary map: the server maps draft ids "
        "otherwise. Check d2t (offsets: target id = draft id + d2t) and the token map."
    )
    return _check("served draft tokens", Outcome.FAIL, message, numbers, Kind.VOCAB_MAP)


def _named(fed: list[int], trained: list[int], num_layers: int) -> str:
    return name_boundaries(fed, trained, num_layers) if len(fed) == len(trained) else f"{len(fed)} features instead of {len(trained)}"


def _check(name: str, verdict: Outcome, message: str, numbers: dict[str, object], kind: Kind | None = None) -> Check:
    return Check(name=name, verdict=verdict, kind=kind, message=message, numbers=numbers)


def as_probe(prompt: Sequence[int], passes: Sequence[Pass], width: int) -> Probe | None:
    """The first round as a golden probe of the server's own logits, for the diagnosis; None where no chain was drafted."""
    first, chain = passes[0], []
    for each in passes[1:]:
        if each.fed_TH.shape[-1] != width or len(each.input_ids_T) != 1:
            break
        chain.append(each)
    tokens = [prompt[0], *first.input_ids_T.tolist(), *(int(each.input_ids_T[0]) for each in chain)]
    if len(prompt) < 2 or len(first.input_ids_T) != len(prompt):
        return None
    features_SnH = first.fed_TH.float().unflatten(-1, (-1, width))
    padded = torch.cat([features_SnH, features_SnH[-1:].expand(len(tokens) + 1 - len(features_SnH), -1, -1)])
    logits = torch.stack([first.logits_LV[-1], *(each.logits_LV[-1] for each in chain)]).float()
    return Probe(
        token_ids_S=torch.tensor([*tokens, tokens[-1]]),
        features_SnH=padded,
        positions_P=torch.tensor([len(prompt) - 1]),
        logits_KPV=logits[:, None],
        argmax_KS=torch.full((len(logits), len(tokens)), PADDING),
    )
