"""What one stage hands to the next: folders with hashes, never tensors. JSON-serialisable."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from tasks.lines import Lines
from tasks.verdict import Check
from tasks.wiring.record import TargetPrint


class _Product(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TargetProduct(_Product):
    """A Hugging Face folder (config, tokenizer, chat template, safetensors) that is ready to be loaded."""

    folder: Path
    name: str
    print: TargetPrint
    sha256: str = Field(description="One hash over the print.")
    trust_remote_code: bool = Field(default=False, description="Its folder's own Python may run: the config said so.")


class Conversation(_Product):
    """One line of `conversations.jsonl`: a tokenised conversation, answered."""

    id: str
    split: Literal["train", "held_out"]
    tokens: list[int]
    spans: list[tuple[int, int]] = Field(description="Half-open token ranges that are supervised: the assistant's answers.")
    prompt_length: int = Field(description="Tokens before the last answer; what a server is given as the prompt.")


KEPT_FEATURES = "features"
"""Folder in the data's product of the features that were kept while it was answered, a file per conversation."""


class DataProduct(_Product):
    """`conversations.jsonl`: the training conversations first, then the held-out ones."""

    folder: Path
    sha256: str = Field(description="Of conversations.jsonl.")
    train: int
    held_out: int
    tokens: int
    supervised_tokens: int
    dropped: dict[str, int] = Field(description="Reason to count of conversations that were left out.")

    @property
    def conversations(self) -> Path:
        return self.folder / "conversations.jsonl"

    def rows(self) -> Sequence[Conversation]:
        """The conversations by row, each read from the file when it is asked for."""
        return Lines(self.conversations, lambda line, _: Conversation.model_validate_json(line))


def feature_file(folder: Path, row: int) -> Path:
    """Where the trainer looks for the features of a row below capture's folder (speculators 0.9.0, `ArrowDataset`)."""
    return folder / "hidden_states" / f"hs_{row}.safetensors"


class CaptureProduct(_Product):
    """Features of every conversation, in speculators' file form, beside a manifest and the wiring record.

    `hidden_states/hs_<row>.safetensors`, row = line of conversations.jsonl: `hidden_states` [S, n+1, H] (n features
    at the ordered boundaries, then the last state before the final norm) and `token_ids` [S] int64.
    """

    folder: Path
    sha256: str = Field(description="Of manifest.json, which holds the hash over all shards.")
    boundaries: list[int]
    rows: int
    tokens: int
    worst_cosine: float = Field(description="Smallest cosine between a feature and its second extraction.")
    checks: list[Check] = []


class StepCounts(_Product):
    """Raw counts of one unrolled draft step over the held-out supervised positions (definitions: `design.md`)."""

    right: int = Field(description="Steps 0..k all right; label = the target's argmax within the draft vocabulary.")
    right_full: int | None = Field(default=None, description="As `right`, against the target's own argmax over its whole vocabulary.")
    positions: int

    @property
    def accuracy(self) -> float:
        return self.right / self.positions


class TrainProduct(_Product):
    """`checkpoint/` (speculators' form), and the trainer's own logits on held-out samples.

    `trainer_logits/<row>.safetensors`, from the reloaded saved checkpoint: `token_ids` [S], `features` [S, n, H] as
    trained on, `logits` [K, S-1, Vd] float32: at step k, index j predicts x[j+2+k]; entries with j+2+k >= S are padding.
    """

    folder: Path
    sha256: str = Field(description="Of checkpoint/.")
    steps: list[StepCounts]
    logits_rows: list[int]
    optimizer_steps: int
    train_tokens_per_second: float
    checks: list[Check] = []


class DrafterProduct(_Product):
    """An SGLang checkpoint folder: config.json, model.safetensors, wiring.json, probes.safetensors."""

    folder: Path
    sha256: str
    checks: list[Check] = []


def drafter_files(folder: Path) -> list[str]:
    """The drafter's files in its folder, sorted relative names: all but the store's own note."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.name != "product.json")
