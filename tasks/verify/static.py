"""What can be known of a checkpoint before it computes anything: its config, its tensors, its record and its target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tasks.verdict import BadInput, Check, Outcome
from tasks.verify.architecture import Architecture
from tasks.verify.checkpoint import Checkpoint, check_tensors
from tasks.verify.hypotheses import IDS_STORED, name_boundaries
from tasks.wiring import served_config, vocabulary
from tasks.wiring.boundaries import default_boundaries
from tasks.wiring.families import family
from tasks.wiring.kinds import Kind
from tasks.wiring.probes import FILE as PROBES
from tasks.wiring.record import FILE, Rope, WiringRecord
from tasks.wiring.target import TargetFacts
from tasks.wiring.translate import boundaries_of_speculators, sglang_boundaries, sglang_default_boundaries, sglang_ids
from tasks.wiring.weights import hashes

# Name of the one check whose failure the diagnosis may explain.
WEIGHTS = "weights"
IDS = "eagle_aux_hidden_state_layer_ids"
# safetensors' names of the dtypes that a config.json may say.
_DTYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
_NO_WEIGHTS = ("d2t", "t2d")


@dataclass(frozen=True)
class Facts:
    """`boundaries`: what a server feeds with this config, in order; None where it cannot serve it at all."""

    checks: list[Check]
    boundaries: list[int] | None

    @property
    def loadable(self) -> bool:
        """Whether the forward can run: tensors and vocabulary map are whole, and as many features come as `fc` takes."""
        names = ("tensors", "vocabulary map", "boundaries", "target")
        return self.boundaries is not None and not any(
            check.name in names and check.verdict is Outcome.FAIL and not check.numbers.get("computable") for check in self.checks
        )


def read_record(checkpoint: Checkpoint) -> WiringRecord | None:
    """The wiring record, None where there is none. Raises BadInput for one that cannot be read."""
    return WiringRecord.read(checkpoint.folder) if (checkpoint.folder / FILE).is_file() else None


def examine(checkpoint: Checkpoint, record: WiringRecord | None, target: TargetFacts, *, longest: int) -> Facts:
    """Every static check. `longest`: tokens of the longest prompt with its answer."""
    fed, boundary_check = _boundaries(checkpoint, record, target)
    tensors = check_tensors(checkpoint)
    # An `fc` of another width follows from the list of boundaries, and is told after it.
    by_width = any(check.kind == Kind.LAYER_BOUNDARIES for check in tensors)
    checks = [
        *([boundary_check, *tensors] if by_width else [*tensors, boundary_check]),
        _flags(checkpoint, record),
        _rope(checkpoint, record, target),
        _target(checkpoint, record, target),
    ]
    if not any(check.verdict is Outcome.FAIL for check in tensors):
        # Weights first: those of another training bring its vocabulary map along.
        checks += [_weights(checkpoint, record.weights)] if record and record.weights is not None else []
        checks += [_vocabulary(checkpoint, record), _dtype(checkpoint)]
    checks += [served_config.check_window(_as_served(checkpoint)), _context(checkpoint.architecture, longest)]
    return Facts(checks, fed)


def served_boundaries(architecture: Architecture, target: TargetFacts) -> list[int]:
    """The ordered boundaries that an engine feeds with this config. Raises BadInput where the engine itself stops."""
    ids = architecture.layer_ids
    if architecture.form == "speculators":
        return boundaries_of_speculators(ids) if ids else default_boundaries(target.num_layers)
    found = family(target.model_type)
    return sglang_boundaries(ids, found, target.num_layers) if ids else sglang_default_boundaries(target.num_layers)


def _boundaries(checkpoint: Checkpoint, record: WiringRecord | None, target: TargetFacts) -> tuple[list[int] | None, Check]:
    architecture = checkpoint.architecture
    try:
        fed = served_boundaries(architecture, target)
    except BadInput as error:
        return None, Check(name="boundaries", verdict=Outcome.FAIL, kind=Kind.LAYER_BOUNDARIES, message=str(error))
    wanted = record.features.boundaries if record else None
    numbers: dict[str, object] = {"fed": fed, "trained": wanted, "ids": architecture.layer_ids, "features": architecture.num_features}
    complaint = _boundary_complaint(checkpoint, fed, wanted, target)
    if complaint is None:
        message = f"the server feeds boundaries {fed}" + (", as trained" if wanted else "; no record says what it was trained on")
        return fed, Check(name="boundaries", verdict=Outcome.PASS, message=message, numbers=numbers)
    if wanted is not None and fed != wanted:
        numbers["hypothesis"] = name_boundaries(fed, wanted, target.num_layers)
    numbers["computable"] = len(fed) == architecture.num_features and all(0 <= b < target.num_layers for b in fed)
    return fed, Check(name="boundaries", verdict=Outcome.FAIL, kind=Kind.LAYER_BOUNDARIES, message=complaint, numbers=numbers)


def _boundary_complaint(checkpoint: Checkpoint, fed: list[int], wanted: list[int] | None, target: TargetFacts) -> str | None:
    architecture = checkpoint.architecture
    do = what_to_set(wanted, architecture, target)
    if wanted is not None and fed != wanted:
        return f"The server feeds boundaries {fed}; the drafter was trained on {wanted}. {do}"
    if len(fed) != architecture.num_features:
        return f"The server feeds {len(fed)} features, boundaries {fed}; fc takes {architecture.num_features}. {do}"
    if len(fed) < 2:
        return f"The server feeds one feature, boundary {fed[0]}, and skips fc. Train on at least two."
    if fed != sorted(set(fed)) or not 0 <= fed[0] <= fed[-1] < target.num_layers:
        last = target.num_layers - 1
        return (
            f"The drafter takes boundaries {fed}; a server feeds ascending ones within 0..{last}. Train on boundaries that can be served."
        )
    ignored = checkpoint.config.get(IDS) if architecture.form != "speculators" else None
    if ignored and ignored not in (fed, list(architecture.layer_ids or [])):
        return (
            f"config.json lists {ignored} at its top level, where SGLang does not look: it feeds boundaries {fed}. "
            f"{what_to_set(list(ignored), architecture, target)}"
        )
    return None


def what_to_set(boundaries: list[int] | None, architecture: Architecture, target: TargetFacts) -> str:
    """What a person has to write into config.json for these boundaries to be fed."""
    if boundaries is None:
        return f"Set eagle_config.{IDS} to the ids that it was trained with."
    if architecture.form == "speculators":
        return f"Set {IDS} to {boundaries}."
    try:
        return f"Set eagle_config.{IDS} to {sglang_ids(boundaries, family(target.model_type), target.num_layers)}."
    except BadInput as error:
        return f"SGLang cannot serve them: {error.do}"


def _flags(checkpoint: Checkpoint, record: WiringRecord | None) -> Check:
    """Every field of the architecture against the record; and what no engine serves."""
    architecture = checkpoint.architecture
    trained = record.draft if record else None
    skipped = ("rope", "ttt_steps", "attention_bias", "mlp_bias", "hidden_act", "attention_window")
    fields = [name for name in type(trained).model_fields if name not in skipped] if trained else []
    wrong = {
        name: (getattr(architecture, name), getattr(trained, name))
        for name in fields
        if getattr(architecture, name) != getattr(trained, name)
    }
    numbers: dict[str, object] = {"differing": {name: {"config": found, "trained": expected} for name, (found, expected) in wrong.items()}}
    if wrong:
        text = "; ".join(f"{name} is {found}, trained with {expected}" for name, (found, expected) in wrong.items())
        message = f"config.json is not what was trained: {text}. Set it as it was trained."
        numbers["hypothesis"] = " and ".join(f"{name} flipped" if isinstance(found, bool) else name for name, (found, _) in wrong.items())
        return Check(name="flags", verdict=Outcome.FAIL, kind=Kind.ARCHITECTURE_FLAGS, message=message, numbers=numbers)
    # Another hidden size than the target's is told by the check of the target.
    served = served_config.check_flags(_as_served(checkpoint), architecture.hidden_size)
    if served.verdict is Outcome.FAIL:
        return served.model_copy(update={"name": "flags"})
    message = f"{len(fields)} fields as trained" if trained else "flags that SGLang serves; no record says what was trained"
    return Check(name="flags", verdict=Outcome.PASS, message=message, numbers=numbers)


def _as_served(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """The config with the layer's keys at the top, where SGLang's form has them and speculators' has not."""
    config = checkpoint.config
    if checkpoint.architecture.form != "speculators":
        return config
    return {**config, **config["transformer_layer_config"]}


def _rope(checkpoint: Checkpoint, record: WiringRecord | None, target: TargetFacts) -> Check:
    architecture = checkpoint.architecture
    trained: Rope | None = record.draft.rope if record and record.draft else None
    numbers: dict[str, object] = {"config": architecture.rope.model_dump(), "trained": trained.model_dump() if trained else None}
    if trained is not None and architecture.rope != trained:
        numbers["hypothesis"] = f"RoPE theta {trained.theta:g}" if trained.theta != architecture.rope.theta else f"RoPE {trained.type}"
        message = (
            f"config.json resolves to RoPE {_rope_text(architecture.rope)}; the drafter was trained with {_rope_text(trained)}. "
            "Set rope_parameters as trained."
        )
        return Check(name="rope", verdict=Outcome.FAIL, kind=Kind.ROPE, message=message, numbers=numbers)
    if trained is None and not (checkpoint.folder / PROBES).is_file():
        return served_config.check_rope(_as_served(checkpoint), target.rope_theta)
    return Check(name="rope", verdict=Outcome.PASS, message=f"RoPE {_rope_text(architecture.rope)}", numbers=numbers)


def _rope_text(rope: Rope) -> str:
    return f"theta {rope.theta:g}" + (f" ({rope.type} {rope.scaling})" if rope.type != "default" else "")


def _target(checkpoint: Checkpoint, record: WiringRecord | None, target: TargetFacts) -> Check:
    """Sizes of the target at hand against those that drafter and record need."""
    pairs: dict[str, tuple[int | str, int | str]] = {
        "hidden_size": (target.hidden_size, checkpoint.architecture.hidden_size),
        "vocab_size": (target.vocab_size, checkpoint.architecture.vocab_size),
    }
    if record:
        pairs |= {
            "num_layers": (target.num_layers, record.target.num_layers),
            "model_type": (target.model_type, record.target.family),
        }
    wrong = [f"{name} {found}, the drafter needs {expected}" for name, (found, expected) in pairs.items() if found != expected]
    numbers = {name: list(pair) for name, pair in pairs.items()}
    if wrong:
        message = f"The drafter was made for another target: {'; '.join(wrong)}. Name its own target."
        return Check(name="target", verdict=Outcome.FAIL, kind=Kind.FEATURES, message=message, numbers=numbers)
    return Check(name="target", verdict=Outcome.PASS, message="the target has the sizes that the drafter needs", numbers=numbers)


def _vocabulary(checkpoint: Checkpoint, record: WiringRecord | None) -> Check:
    architecture = checkpoint.architecture
    d2t = checkpoint.tensor("d2t") if "d2t" in checkpoint.stored else torch.zeros(architecture.draft_vocab_size, dtype=torch.int64)
    t2d = checkpoint.tensor("t2d") if "t2d" in checkpoint.stored else None
    check = vocabulary.check_map(d2t, target_size=architecture.vocab_size, t2d_V=t2d)
    if check.verdict is Outcome.FAIL and _are_target_ids(d2t.flatten(), architecture.vocab_size):
        check = check.model_copy(update={"numbers": {**check.numbers, "hypothesis": IDS_STORED}})
    trained = record.vocab_map.sha256 if record and record.vocab_map else None
    if check.verdict is Outcome.PASS and trained and vocabulary.hash_of(vocabulary.target_ids(d2t)) != trained:
        message = "d2t maps to other target ids than the drafter was trained with (their hash differs from the record's). Export it again."
        return check.model_copy(
            update={"verdict": Outcome.FAIL, "kind": Kind.VOCAB_MAP, "message": message, "numbers": {**check.numbers, "computable": True}}
        )
    return check


def _are_target_ids(d2t_D: torch.Tensor, target_size: int) -> bool:
    return bool((d2t_D.diff() > 0).all()) and int(d2t_D[0]) >= 0 and int(d2t_D[-1]) < target_size


def _dtype(checkpoint: Checkpoint) -> Check:
    """The weights are all of one dtype, the one that config.json says, if it says one."""
    found = sorted({entry.dtype for name, entry in checkpoint.stored.items() if name not in _NO_WEIGHTS})
    said = str(checkpoint.config.get("dtype") or checkpoint.config.get("torch_dtype") or "").removeprefix("torch.")
    numbers = {"stored": found, "config": said or None}
    if len(found) > 1 or (said in _DTYPES and found != [_DTYPES[said]]):
        message = (
            f"The weights are stored as {', '.join(found)}; config.json says {said or 'nothing'}. Save them in one dtype, and say which."
        )
        return Check(name="dtype", verdict=Outcome.FAIL, kind=Kind.DTYPE_QUANTISATION, message=message, numbers=numbers)
    return Check(name="dtype", verdict=Outcome.PASS, message=f"all weights are {found[0]}", numbers=numbers)


def _weights(checkpoint: Checkpoint, exported: dict[str, str]) -> Check:
    """Each weight against its hash in the record. What was done to those that differ is for the diagnosis to say."""
    found = hashes({name: checkpoint.tensor(name) for name in checkpoint.stored})
    other = sorted(name for name in {**found, **exported} if found.get(name) != exported.get(name))
    numbers: dict[str, object] = {"other": other, "weights": len(exported)}
    if not other:
        message = f"{len(exported)} weights, each the one that was exported"
        return Check(name=WEIGHTS, verdict=Outcome.PASS, message=message, numbers=numbers)
    numbers["hypothesis"] = "weights of another training" if 2 * len(other) > len(exported) else f"other values in {', '.join(other)}"
    message = (
        f"{len(other)} of {len(exported)} weights are not those that were exported with this wiring record: {', '.join(other)}. "
        "Copy the whole folder of one export."
    )
    return Check(name=WEIGHTS, verdict=Outcome.FAIL, kind=Kind.TENSORS, message=message, numbers=numbers)


def _context(architecture: Architecture, longest: int) -> Check:
    numbers = {"max_position_embeddings": architecture.max_position_embeddings, "longest": longest}
    if longest > architecture.max_position_embeddings:
        message = (
            f"The drafter's max_position_embeddings is {architecture.max_position_embeddings}; the longest prompt with its answer "
            f"takes {longest} tokens. Shorten them, or train a drafter for longer contexts."
        )
        return Check(name="context length", verdict=Outcome.FAIL, kind=Kind.CONTEXT_LENGTH, message=message, numbers=numbers)
    message = f"{longest} tokens fit into {architecture.max_position_embeddings} positions"
    return Check(name="context length", verdict=Outcome.PASS, message=message, numbers=numbers)
