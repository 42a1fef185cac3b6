"""Where conversations come from: Python's own documentation, a file, or a folder into which files are dropped."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tasks.data.builtin import python_docs
from tasks.data.files import read_jsonl
from tasks.data.raw import Raw
from tasks.lines import Joined
from tasks.store import sha256_file, sha256_json
from tasks.verdict import BadInput

_BUILTIN = {"builtin:python-docs": python_docs}


@dataclass(frozen=True)
class Source:
    """What `data.prompts` names. A folder is listed once, so that what is dropped into it meanwhile waits for the next run."""

    prompts: str
    files: tuple[Path, ...]

    @classmethod
    def of(cls, prompts: str) -> Self:
        """Raises BadInput for a folder without a JSONL file."""
        folder = Path(prompts)
        if prompts in _BUILTIN or not folder.is_dir():
            return cls(prompts, () if prompts in _BUILTIN else (folder,))
        # A dot in front: what a copying tool has not finished.
        files = sorted(path for path in folder.glob("*.jsonl") if not path.name.startswith("."))
        if not files:
            raise BadInput("data.prompts", found=f"no *.jsonl in {folder}", expected="at least one file", do="Drop conversations into it.")
        return cls(prompts, tuple(files))

    def sha256(self) -> str:
        """Of the contents in their order, whatever the files are called."""
        if not self.files:
            return sha256_json(sys.version)
        return sha256_json([sha256_file(path) for path in self.files])

    def read(self) -> Sequence[Raw]:
        """The conversations. Raises BadInput, naming the line."""
        return Joined([read_jsonl(path) for path in self.files]) if self.files else _BUILTIN[self.prompts]()
