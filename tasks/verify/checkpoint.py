"""A drafter's folder, read as untrusted input: safetensors only, sizes and names checked before anything is loaded."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from tasks.store import read_small
from tasks.verdict import BadInput, Check, Outcome
from tasks.verify.architecture import Architecture, read_architecture
from tasks.wiring.checkpoint_contract import canonical
from tasks.wiring.kinds import Kind

_CONFIG_BYTES = 1 << 20
_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
_FLOATS = ("F32", "BF16", "F16", "F64")
_INTEGERS = ("I64", "I32")
_BYTES_PER_NUMBER = 8


@dataclass(frozen=True)
class Slot:
    """A tensor that the architecture has a place for."""

    shape: tuple[int, ...]
    dtypes: tuple[str, ...] = _FLOATS
    required: bool = True


@dataclass(frozen=True)
class Stored:
    """A tensor of the folder: where it lies, and what its header says."""

    file: Path
    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Checkpoint:
    """Config and headers; no weight is loaded yet. `stored` is keyed by canonical name (`layers.0.…`)."""

    folder: Path
    config: Mapping[str, Any]
    architecture: Architecture
    stored: Mapping[str, Stored]

    def tensor(self, name: str) -> torch.Tensor:
        """One tensor as stored. Raises BadInput when the file cannot be read."""
        stored = self.stored[name]
        with _opened(stored.file) as file:
            return file.get_tensor(stored.name)


def slots(architecture: Architecture) -> dict[str, Slot]:
    """Every tensor of a drafter, by canonical name: the strict contract of the loader."""
    a, layer = architecture, "layers.0."
    hidden, queries, keys = a.hidden_size, a.num_attention_heads * a.head_dim, a.num_key_value_heads * a.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, a.num_features * hidden),
        f"{layer}input_layernorm.weight": (hidden,),
        f"{layer}hidden_norm.weight": (hidden,),
        f"{layer}self_attn.q_proj.weight": (queries, 2 * hidden),
        f"{layer}self_attn.k_proj.weight": (keys, 2 * hidden),
        f"{layer}self_attn.v_proj.weight": (keys, 2 * hidden),
        f"{layer}self_attn.o_proj.weight": (hidden, queries),
        f"{layer}post_attention_layernorm.weight": (hidden,),
        f"{layer}mlp.gate_proj.weight": (a.intermediate_size, hidden),
        f"{layer}mlp.up_proj.weight": (a.intermediate_size, hidden),
        f"{layer}mlp.down_proj.weight": (hidden, a.intermediate_size),
        "norm.weight": (hidden,),
        "lm_head.weight": (a.draft_vocab_size, hidden),
    }
    if a.fc_bias:
        shapes["fc.bias"] = (hidden,)
    if a.norm_before_fc:
        shapes["input_norm.weight"] = (a.num_features * hidden,)
    if a.fc_norm:
        shapes |= {f"fc_norm.{i}.weight": (hidden,) for i in range(a.num_features)}
    table = {name: Slot(shape) for name, shape in shapes.items()}
    table["d2t"] = Slot((a.draft_vocab_size,), _INTEGERS, required=a.draft_vocab_size != a.vocab_size)
    table["t2d"] = Slot((a.vocab_size,), ("BOOL",), required=False)
    # An engine replaces it by the target's, so a drafter may come without.
    table["embed_tokens.weight"] = Slot((a.vocab_size, hidden), required=False)
    return table


def read_checkpoint(folder: Path) -> Checkpoint:
    """Config and tensor headers of a drafter's folder, in any of the three forms.

    Raises BadInput: nothing readable there, pickled weights, a file that is cut short or larger than the
    architecture can explain, a name that leads out of the folder, the same tensor twice.
    """
    if not folder.is_dir():
        raise BadInput(str(folder), found="no folder", expected="a drafter's folder", do="Name the folder that holds config.json.")
    config = read_json(folder / "config.json")
    architecture = read_architecture(config, str(folder / "config.json"))
    stored: dict[str, Stored] = {}
    largest = sum(_numbers(slot.shape) for slot in slots(architecture).values()) * _BYTES_PER_NUMBER + _CONFIG_BYTES
    for file in _weight_files(folder):
        size = file.stat().st_size
        if size > largest:
            expected = f"at most {largest:,}, what the sizes in config.json can take"
            raise BadInput(str(file), found=f"{size:,} bytes", expected=expected, do="Check that these are the drafter's own files.")
        for name, entry in _headers(file):
            if canonical(name) in stored:
                raise BadInput(str(file), found=f"{name} twice", expected="each tensor once", do="Save the checkpoint again.")
            stored[canonical(name)] = entry
    return Checkpoint(folder, config, architecture, stored)


def check_tensors(checkpoint: Checkpoint) -> list[Check]:
    """Names, shapes and dtypes, both ways; then values. Never raises: each fault is a FAIL that names the tensors."""
    table, stored = slots(checkpoint.architecture), checkpoint.stored
    missing = sorted(name for name, slot in table.items() if slot.required and name not in stored)
    unexpected = sorted(set(stored) - set(table))
    wrong = [
        f"{name} is {entry.dtype} {list(entry.shape)}, not {'/'.join(slot.dtypes)} {list(slot.shape)}"
        for name, entry in sorted(stored.items())
        if (slot := table.get(name)) and (entry.shape != slot.shape or entry.dtype not in slot.dtypes)
    ]
    complaints = [
        f"{len(names)} {what}: {', '.join(names)}"
        for what, names in (("missing", missing), ("unexpected", unexpected), ("of another shape or dtype", wrong))
        if names
    ]
    if complaints:
        do = "SGLang would leave missing ones random and drop unexpected ones, in silence: export the drafter again."
        numbers = {"matched": len(set(table) & set(stored)), "missing": missing, "unexpected": unexpected, "wrong": wrong}
        message = f"The tensors are not those of the architecture in config.json. {'; '.join(complaints)}. {do}"
        kind = _kind(missing, unexpected, wrong)
        if kind is Kind.LAYER_BOUNDARIES:
            a, width = checkpoint.architecture, stored["fc.weight"].shape[-1]
            message = (
                f"config.json asks for {a.num_features} features {list(a.layer_ids or [])}; fc takes {width / a.hidden_size:g}. {message}"
            )
        return [Check(name="tensors", verdict=Outcome.FAIL, kind=kind, message=message, numbers=numbers)]
    return [_check_values(checkpoint)]


def _kind(missing: list[str], unexpected: list[str], wrong: list[str]) -> Kind:
    """A norm that is there without its flag (or the reverse) is a flag's fault, an `fc` of another width one of the features'."""
    names = missing + unexpected
    if names and not wrong and all(name.startswith(("input_norm.", "fc_norm.", "fc.bias")) for name in names):
        return Kind.ARCHITECTURE_FLAGS
    if not names and len(wrong) == 1 and wrong[0].startswith("fc.weight"):
        return Kind.LAYER_BOUNDARIES
    return Kind.TENSORS


def _check_values(checkpoint: Checkpoint) -> Check:
    """Finite numbers everywhere, and no weight that is constant over all of its entries but a norm's."""
    bad: list[str] = []
    for name, entry in sorted(checkpoint.stored.items()):
        if entry.dtype not in _FLOATS:
            continue
        tensor = checkpoint.tensor(name)
        if not bool(torch.isfinite(tensor).all()):
            bad.append(f"{name} has {int((~torch.isfinite(tensor)).sum())} values that are no numbers")
        elif tensor.dim() > 1 and bool((tensor == tensor.flatten()[0]).all()):
            bad.append(f"{name} is {float(tensor.flatten()[0]):g} everywhere")
    if bad:
        message = f"The weights were never written: {'; '.join(bad)}. Export the drafter again."
        return Check(name="tensors", verdict=Outcome.FAIL, kind=Kind.TENSORS, message=message, numbers={"bad": bad})
    count = len(checkpoint.stored)
    message = f"{count} tensors, each one expected, finite, and of its shape"
    return Check(name="tensors", verdict=Outcome.PASS, message=message, numbers={"matched": count})


def read_json(path: Path) -> dict[str, Any]:
    """A small JSON object. Raises BadInput: missing, larger than 1 MiB, no JSON object."""
    try:
        value = json.loads(read_small(path, _CONFIG_BYTES))
    except OSError as error:
        raise BadInput(str(path), found=error.strerror, expected="a JSON file", do="Name the folder that holds it.") from error
    except (ValueError, RecursionError) as error:
        raise BadInput(
            str(path), found=f"no JSON ({error})", expected="a JSON file of at most 1 MiB", do="Export the drafter again."
        ) from error
    if not isinstance(value, dict):
        raise BadInput(str(path), found=type(value).__name__, expected="a JSON object", do="Export the drafter again.")
    return value


def _weight_files(folder: Path) -> list[Path]:
    if (folder / _WEIGHTS).is_file():
        return [folder / _WEIGHTS]
    if (folder / _INDEX).is_file():
        weight_map = read_json(folder / _INDEX).get("weight_map")
        names = set(weight_map.values()) if isinstance(weight_map, dict) else set()
        if not names or any(not isinstance(name, str) or Path(name).name != name for name in names):
            raise BadInput(str(folder / _INDEX), found=sorted(map(str, names)), expected="plain file names", do="Export the drafter again.")
        gone = [name for name in sorted(names) if not (folder / name).is_file()]
        if gone:
            raise BadInput(str(folder), found=f"no {', '.join(gone)}", expected="every file of the index", do="Copy the folder again.")
        return [folder / name for name in sorted(names)]
    pickles = sorted(p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".pth", ".ckpt"))
    found = f"only pickled weights ({', '.join(pickles)})" if pickles else f"no {_WEIGHTS}"
    do = "A pickle can run any code and is never loaded: convert it to safetensors." if pickles else "Name the drafter's folder."
    raise BadInput(str(folder), found=found, expected=_WEIGHTS, do=do)


def _opened(file: Path) -> Any:
    try:
        return safe_open(file, framework="pt")
    except (SafetensorError, OSError) as error:
        raise BadInput(
            str(file), found=f"no whole safetensors file ({error})", expected="safetensors", do="Copy it again: it may be cut short."
        ) from error


def _headers(file: Path) -> Iterator[tuple[str, Stored]]:
    with _opened(file) as opened:
        for name in opened.keys():  # noqa: SIM118 (no mapping)
            part = opened.get_slice(name)
            yield name, Stored(file, name, tuple(part.get_shape()), part.get_dtype())


def _numbers(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
