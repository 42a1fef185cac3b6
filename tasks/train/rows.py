"""What the library's loaders are given: conversations as its dataset, features checked row by row, loaders over both."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import torch
from datasets import Dataset, disable_progress_bars
from datasets.arrow_writer import ArrowWriter
from hs_connectors import FileTransfer
from safetensors import SafetensorError, safe_open
from speculators.models.eagle3.data import shift_batch
from speculators.train.dataloader import create_train_val_loaders
from torch.utils.data import DataLoader

from tasks.products import CaptureProduct, Conversation, DataProduct, TargetProduct, feature_file
from tasks.verdict import BadInput, Check, Outcome, ProofFailed, Verdict
from tasks.wiring.kinds import Kind

# `create_train_val_loaders` sets these for its worker processes (dataloader.py:49, speculators 0.9.0); left in
# the environment they would slow down every process that is started later, the servers among them.
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_WRITTEN_AT_ONCE = 1000  # rows


@dataclass(frozen=True)
class Rows:
    """The conversations in the order of their rows: `train` training ones, then the held-out ones."""

    conversations: Sequence[Conversation]
    train: int
    masked_first: int

    @property
    def held_out(self) -> range:
        return range(self.train, len(self.conversations))

    def mask(self, row: int) -> list[int]:
        """1 per supervised token, [S]: the answers, less the row's first `masked_first` tokens.

        Rows are packed one behind the other and step k's loss is shifted by k, so that without the latter a label
        at the start of one row would be predicted from the end of the row before it.
        """
        conversation = self.conversations[row]
        mask = [0] * len(conversation.tokens)
        for start, stop in conversation.spans:
            mask[start:stop] = [1] * (stop - start)
        mask[: self.masked_first] = [0] * min(self.masked_first, len(mask))
        return mask

    def positions(self, rows: range) -> int:
        """Tokens of these rows that reach the drafter: `shift_batch` drops the first of each."""
        return sum(len(self.conversations[row].tokens) - 1 for row in rows)

    def supervised(self, rows: range) -> int:
        """Supervised tokens of these rows that reach the drafter."""
        return sum(sum(self.mask(row)[1:]) for row in rows)


def read_rows(data: DataProduct, masked_first: int) -> Rows:
    """The conversations of `data`. Raises BadInput when their number or order is not as the product says."""
    conversations = data.rows()
    runs = [(split, sum(1 for _ in run)) for split, run in groupby(conversation.split for conversation in conversations)]
    if runs != [("train", data.train), ("held_out", data.held_out)]:
        raise BadInput(
            str(data.conversations),
            found=", then ".join(f"{count} {split}" for split, count in runs),
            expected=f"{data.train} training conversations, then {data.held_out} held-out ones, at least one of each",
            do="Raise data.conversations, or make the data again.",
        )
    return Rows(conversations, data.train, masked_first)


def check_lengths(rows: Rows, tokens_per_batch: int) -> None:
    """Raise BadInput for a conversation longer than a batch: the library would cut it off with a mere warning."""
    longest = max(len(conversation.tokens) for conversation in rows.conversations)
    if longest > tokens_per_batch:
        raise BadInput(
            "train.tokens_per_batch",
            found=tokens_per_batch,
            expected=f"at least {longest}, the longest conversation",
            do="Raise it, or lower data.prompt_tokens and data.answer_tokens.",
        )


def check_features(rows: Rows, capture: CaptureProduct, hidden_size: int) -> Check:
    """Every row's file is there, of its tokens and of the right shape; the library would skip those that are not.

    Raises ProofFailed, kind `silent-loss`.
    """
    shape = [len(capture.boundaries) + 1, hidden_size]
    wrong = [
        f"row {row}: {problem}"
        for row, conversation in enumerate(rows.conversations)
        if (problem := _problem(feature_file(capture.folder, row), conversation.tokens, [len(conversation.tokens), *shape]))
    ]
    return gate("features match conversations", wrong, asked=len(rows.conversations))


def gate(name: str, wrong: Sequence[str], *, asked: int) -> Check:
    """A check that passes when nothing was lost. Raises ProofFailed, kind `silent-loss`, naming the first losses."""
    if not wrong:
        return Check(name=name, verdict=Outcome.PASS, message=f"{asked} of {asked}", numbers={"asked": asked, "lost": 0})
    check = Check(
        name=name,
        verdict=Outcome.FAIL,
        kind=Kind.SILENT_LOSS,
        message=f"{name}: {len(wrong)} lost of {asked} ({'; '.join(wrong[:3])}). Capture again; if it stays, read the library anew.",
        numbers={"asked": asked, "lost": len(wrong)},
    )
    raise ProofFailed(Verdict.of("train", [check], passed=""))


def _problem(path: Path, tokens: list[int], shape: list[int]) -> str | None:
    try:
        with safe_open(path, framework="pt") as file:
            found = file.get_slice("hidden_states").get_shape()
            if found != shape:
                return f"features of shape {found} instead of {shape}"
            if file.get_tensor("token_ids").tolist() != tokens:
                return "features of other tokens"
    except (OSError, SafetensorError) as error:
        return f"no readable {path.name} ({error})"
    return None


def write_dataset(rows: Rows, folder: Path) -> None:
    """The dataset that the library's `ArrowDataset` reads, in the form of its own preprocessing."""
    disable_progress_bars()
    shutil.rmtree(folder, ignore_errors=True)
    written = folder.with_name(folder.name + ".arrow")
    with ArrowWriter(path=str(written), writer_batch_size=_WRITTEN_AT_ONCE) as writer:
        for row, conversation in enumerate(rows.conversations):
            writer.write({"input_ids": conversation.tokens, "loss_mask": rows.mask(row), "seq_len": len(conversation.tokens)})
        writer.finalize()
    Dataset.from_file(str(written)).with_format("torch").save_to_disk(str(folder))  # maps the file, reads no more than a batch
    written.unlink()


def make_loaders(
    rows: Rows,
    *,
    dataset: Path,
    capture: CaptureProduct,
    target: TargetProduct,
    tokens_per_batch: int,
    dtype: torch.dtype,
    workers: int,
    seed: int,
) -> tuple[DataLoader, DataLoader]:
    """The library's loaders over the training and the held-out rows."""
    total = len(rows.conversations)
    with _environment_restored(_THREAD_VARIABLES):
        loaders: tuple[DataLoader, DataLoader] = create_train_val_loaders(
            data_path=str(dataset),
            total_seq_len=tokens_per_batch,
            hidden_states_dtype=dtype,
            transfer=FileTransfer(capture.folder / "hidden_states"),
            vllm_endpoint="",
            on_missing="raise",
            verifier_name_or_path=str(target.folder),
            request_timeout=None,
            max_retries=0,
            generation_validation_retries=0,
            max_consecutive_generation_failures=1,
            hidden_size=target.print.hidden_size,
            num_target_layers=len(capture.boundaries),
            num_workers=workers,
            prefetch_factor=2,
            preprocess=shift_batch,
            # The split is int(total * ratio) (data.py, ArrowDataset): half a row more is safe from rounding.
            train_data_ratio=(rows.train + 0.5) / total,
            max_train_batches=None,
            seed=seed,
        )
    return loaders


def check_split(rows: Rows, train_loader: DataLoader, held_out_loader: DataLoader) -> Check:
    """The loaders hold every row once, on its side of the split. Raises ProofFailed, kind `silent-loss`."""
    wrong = []
    for name, loader, asked in (("training", train_loader, rows.train), ("held-out", held_out_loader, len(rows.held_out))):
        drawn = sorted(int(row) for batch in loader.batch_sampler for row in batch)
        if drawn != list(range(asked)):
            wrong.append(f"{asked} {name} rows asked for, {len(set(drawn))} of them drawn in {len(drawn)} draws")
    return gate("rows in the loaders", wrong, asked=len(rows.conversations))


@contextmanager
def _environment_restored(names: Sequence[str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in names}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
