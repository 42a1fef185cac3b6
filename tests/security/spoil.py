"""Ways to spoil a model's folder, as somebody who means harm would."""

from __future__ import annotations

import json
import os
import pickle  # noqa: TID251 (the bomb that nothing may set off)
import struct
from collections.abc import Callable
from pathlib import Path

WEIGHTS = "model.safetensors"
INDEX = f"{WEIGHTS}.index.json"
SECRET = "the secret of another folder"
Spoil = Callable[[Path], object]


class Bomb:
    """Unpickling it makes the folder `ran`."""

    def __init__(self, ran: Path) -> None:
        self._ran = ran

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return os.mkdir, (str(self._ran),)


def goes_off(ran: Path) -> bool:
    """Whether a bomb does what it should, where it is unpickled."""
    pickle.loads(pickle.dumps(Bomb(ran)))
    return ran.exists()


def armed(folder: Path, ran: Path) -> None:
    """Pickles under every name that a library looks for, and Python that every config asks for."""
    for name in ("pytorch_model.bin", "model.pt", "training_args.bin", "optimizer.pt"):
        (folder / name).write_bytes(pickle.dumps(Bomb(ran)))
    for name in ("evil.py", "configuration_evil.py", "modeling_evil.py", "conftest.py", "sitecustomize.py"):
        (folder / name).write_text(f"import os\nos.mkdir({str(ran)!r})\nclass Evil: ...\n")


def edited(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def text(name: str, content: str) -> Spoil:
    return lambda folder: (folder / name).write_text(content)


def device(name: str) -> Spoil:
    """A file without end."""

    def spoil(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to("/dev/zero")

    return spoil


def pipe(name: str) -> Spoil:
    """A file that never comes."""

    def spoil(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return spoil


def link_to_secret(name: str) -> Spoil:
    def spoil(folder: Path) -> None:
        (folder.parent / "secret").write_text(SECRET)
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(folder.parent / "secret")

    return spoil


def header(content: bytes, length: int | None = None) -> Spoil:
    """A safetensors file that is all header."""
    return lambda folder: (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(content) if length is None else length) + content)


def tensor(shape: list[int], offsets: list[int]) -> Spoil:
    return header(json.dumps({"fc.weight": {"dtype": "F32", "shape": shape, "data_offsets": offsets}}).encode())


def index(name: str) -> Spoil:
    """The weights lie beside the folder and under another name in it, and the index names `name`."""

    def spoil(folder: Path) -> None:
        weights = (folder / WEIGHTS).read_bytes()
        (folder / WEIGHTS).unlink()
        for path in (folder.parent / "elsewhere.safetensors", folder / "a.safetensors"):
            path.write_bytes(weights)
        (folder / INDEX).write_text(json.dumps({"weight_map": {"fc.weight": name}}))

    return spoil
