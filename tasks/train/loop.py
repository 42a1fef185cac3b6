"""The library's Trainer, driven so that it can be interrupted, heard, and held to account for what it was given."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from speculators.models.eagle3 import Eagle3DraftModel
from speculators.train import trainer as library
from torch.utils.data import DataLoader

from tasks.config import TrainConfig
from tasks.report import Report
from tasks.train.curves import curves
from tasks.train.rows import Rows, gate
from tasks.train.state import Progress, load_state, save_state

# The library's own progress bar (trainer.py, `tqdm(loader, desc=…)`): ours goes through the report.
library.tqdm = lambda loader, desc: loader


class Arrivals:
    """Counts the tokens that reach a drafter's forward, whatever the loaders did before."""

    def __init__(self, drafter: torch.nn.Module) -> None:
        self.forget()
        drafter.register_forward_pre_hook(self._count, with_kwargs=True)

    def forget(self, positions: int = 0, supervised: int = 0) -> None:
        self.positions: int | torch.Tensor = positions
        self.supervised: int | torch.Tensor = supervised

    def _count(self, drafter: torch.nn.Module, arguments: tuple[Any, ...], batch: Mapping[str, torch.Tensor]) -> None:
        self.positions = self.positions + (batch["document_ids"] != -1).sum()
        self.supervised = self.supervised + batch["loss_mask"].sum()

    def check(self, rows: Rows, which: range, name: str) -> None:
        """Raise ProofFailed, kind `silent-loss`, unless exactly these rows have arrived since `forget`."""
        wanted = {"tokens": rows.positions(which), "supervised tokens": rows.supervised(which)}
        arrived = {"tokens": int(self.positions), "supervised tokens": int(self.supervised)}
        wrong = [f"{arrived[what]} of {wanted[what]} {what} arrived" for what in wanted if arrived[what] != wanted[what]]
        gate(f"{name} rows reach the drafter", wrong, asked=wanted["tokens"])


class DraftTrainer(library.Trainer):
    """The library's Trainer with a state of our own, written every `save_every_steps` and at the end of each epoch.

    Its own `run_training` is not used: on SIGINT or SIGTERM that one saves and returns as if it had finished.
    """

    def __init__(
        self,
        drafter: Eagle3DraftModel,
        settings: library.TrainerConfig,
        loaders: tuple[DataLoader, DataLoader],
        *,
        config: TrainConfig,
        rows: Rows,
        state: Path,
        report: Report,
    ) -> None:
        super().__init__(drafter, settings, *loaders)
        self.ours, self.rows, self.state, self.report = config, rows, state, report
        self.starts = epoch_starts(loaders[0], config.epochs)
        self.arrivals = Arrivals(drafter)
        self.progress = Progress()
        if state.exists():
            self._go_on()

    def run(self) -> Progress:
        """Train and validate to the end, and return what it took."""
        with curves(self.report, self.ours.ttt_steps) as self.heard:
            for epoch in range(self.current_epoch, self.ours.epochs):
                self._train(epoch)
                if self.ours.validate_every_epoch or epoch == self.ours.epochs - 1:
                    self._validate(epoch)
        return self.progress

    def _go_on(self) -> None:
        self.progress = load_state(self.state, self)
        self.current_epoch = self.progress.epoch
        self.global_step = self.progress.step
        self._resume_local_step = self.progress.step - self.starts[self.progress.epoch]
        self.report.say(f"Training goes on from step {self.global_step} of {self.starts[-1]}.")

    def _train(self, epoch: int) -> None:
        if self.progress.epoch != epoch:
            self.progress.epoch, self.progress.positions, self.progress.supervised = epoch, 0, 0
        self.arrivals.forget(self.progress.positions, self.progress.supervised)
        self._resumed = time.perf_counter()
        self.train_epoch(epoch, step_callback=partial(self._after_step, epoch))
        self.arrivals.check(self.rows, range(self.rows.train), "training")

    def _validate(self, epoch: int) -> None:
        self.arrivals.forget()
        self.val_epoch(epoch)
        self.arrivals.check(self.rows, self.rows.held_out, "held-out")

    def _after_step(self, epoch: int) -> None:
        now, progress = time.perf_counter(), self.progress
        progress.seconds += now - self._resumed
        progress.step = self.global_step
        ends = self.global_step == self.starts[epoch + 1]
        logged = (self.global_step - 1) % self.ours.log_every_steps == 0
        if ends or logged:
            self._tell(epoch)
        if ends or self.global_step % self.ours.save_every_steps == 0:
            progress.positions, progress.supervised = int(self.arrivals.positions), int(self.arrivals.supervised)
            save_state(self.state, self, progress)
        self._resumed = time.perf_counter()

    def _tell(self, epoch: int) -> None:
        done, total = self.global_step, self.starts[-1]
        arrived = epoch * self.rows.positions(range(self.rows.train)) + int(self.arrivals.positions)
        measured = {"tokens_per_second": arrived / self.progress.seconds, **self.heard.last}
        self.report.progress(done, total, "steps", {**measured, "eta_seconds": (total - done) * self.progress.seconds / done})


def epoch_starts(loader: DataLoader, epochs: int) -> list[int]:
    """The optimizer step at which each epoch starts, and at the end their total: packing differs from epoch to epoch."""
    lengths = []
    for epoch in range(epochs):
        loader.batch_sampler.set_epoch(epoch)
        lengths.append(len(loader.batch_sampler))
    loader.batch_sampler.set_epoch(0)
    return [0, *accumulate(lengths)]
