"""One training: features in, checkpoint and the trainer's own logits and counts out."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from loguru import logger
from speculators.models.eagle3 import Eagle3DraftModel
from speculators.train.trainer import TrainerConfig
from torch.utils.data import DataLoader
from transformers import LlamaConfig
from transformers.utils.logging import disable_progress_bar

from tasks.config import TrainConfig
from tasks.device import Placement
from tasks.products import CaptureProduct, TargetProduct
from tasks.report import Report
from tasks.store import need_disk, sha256_folder, versions
from tasks.train import cpu, kernels, reference
from tasks.train.drafter import draft_record, layer_config, library_arguments, new_drafter
from tasks.train.loop import DraftTrainer, epoch_starts
from tasks.train.rows import Rows, check_features, check_lengths, check_split, make_loaders, write_dataset
from tasks.train.stage import LIBRARIES
from tasks.train.state import Progress
from tasks.train.vocabulary import Vocabulary, choose_vocabulary, count_tokens
from tasks.wiring.record import WiringRecord

CHECKPOINT, LOGITS, STATE, DATASET = "checkpoint", "trainer_logits", "state.safetensors", "dataset"


class Job:
    """`build` is what the store calls with the folder to fill."""

    def __init__(
        self,
        config: TrainConfig,
        placement: Placement,
        seed: int,
        rows: Rows,
        capture: CaptureProduct,
        target: TargetProduct,
        wiring: WiringRecord,
        parity_rows: int,
        report: Report,
    ) -> None:
        self.config, self.placement, self.seed, self.rows = config, placement, seed, rows
        self.capture, self.target, self.wiring = capture, target, wiring
        self.parity_rows, self.report = min(parity_rows, len(rows.held_out)), report

    def build(self, folder: Path) -> dict[str, Any]:
        disable_progress_bar()
        logger.disable("speculators")  # it tells on stderr which file it opens, and that tied heads have none
        check_lengths(self.rows, self.config.tokens_per_batch)
        layer = layer_config(self.target)
        vocabulary = self._vocabulary(layer.vocab_size)
        need_disk(folder, self._bytes(layer, vocabulary), "training the drafter")
        checks = [check_features(self.rows, self.capture, self.target.print.hidden_size)]
        write_dataset(self.rows, folder / DATASET)
        loaders = self._loaders(folder / DATASET)
        checks.append(check_split(self.rows, *loaders))
        progress = self._train(folder, layer, vocabulary, loaders)
        tally = self._measure(folder, loaders[1])
        shutil.rmtree(folder / DATASET)
        (folder / STATE).unlink()
        return {
            "sha256": sha256_folder(folder / CHECKPOINT),
            "steps": [step.model_dump() for step in tally.steps()],
            "logits_rows": list(self.rows.held_out[: self.parity_rows]),
            "optimizer_steps": progress.step,
            "train_tokens_per_second": self.config.epochs * self.rows.positions(range(self.rows.train)) / progress.seconds,
            "checks": [check.model_dump(mode="json") for check in checks],
        }

    def _vocabulary(self, target_size: int) -> Vocabulary:
        counts = count_tokens(self.rows)
        asked = self.config.draft_vocab_size
        vocabulary = choose_vocabulary(counts, asked, target_size)
        if vocabulary.size < asked:
            self.report.say(
                f"Draft vocabulary of {vocabulary.size} instead of {asked}: the training answers have {len(counts)} distinct tokens."
            )
        return vocabulary

    def _loaders(self, dataset: Path) -> tuple[DataLoader, DataLoader]:
        return make_loaders(
            self.rows,
            dataset=dataset,
            capture=self.capture,
            target=self.target,
            tokens_per_batch=self.config.tokens_per_batch,
            dtype=getattr(torch, self.placement.dtype),
            workers=0 if self.placement.device == "cpu" else 4,
            seed=self.seed,
        )

    def _train(self, folder: Path, layer: LlamaConfig, vocabulary: Vocabulary, loaders: tuple[DataLoader, DataLoader]) -> Progress:
        """Train to the end, and leave `checkpoint/` with the wiring record beside its weights."""
        arguments = library_arguments(
            self.config,
            target=self.target,
            boundaries=self.capture.boundaries,
            draft_size=vocabulary.size,
            device=self.placement.device,
        )
        with cpu.accelerator_not_needed(self.placement.device), cpu.faster_argmax(self.placement.device):
            drafter = new_drafter(layer, vocabulary, arguments, self.seed)
            trainer = DraftTrainer(
                drafter,
                trainer_settings(self.config, self.placement, folder, epoch_starts(loaders[0], self.config.epochs)[-1], arguments),
                loaders,
                config=self.config,
                rows=self.rows,
                state=folder / STATE,
                report=self.report,
            )
            if self.placement.device == "cpu":
                cpu.settle(trainer, *loaders)
            progress = trainer.run()
            trainer.checkpointer.save_checkpoint(drafter, [], CHECKPOINT)
        trainer.checkpointer.optimizer_path(CHECKPOINT).unlink()
        draft, vocab_map = draft_record(self.config, layer), vocabulary.record()
        self.wiring.model_copy(
            update={"draft": draft, "vocab_map": vocab_map, "versions": {**self.wiring.versions, **versions(*LIBRARIES)}}
        ).write(folder / CHECKPOINT)
        return progress

    def _measure(self, folder: Path, held_out: DataLoader) -> reference.Tally:
        with cpu.accelerator_not_needed(self.placement.device), torch.compiler.set_stance("force_eager"):
            tally: reference.Tally = reference.measure(
                reference.reload(folder / CHECKPOINT, self.target, self.placement.device),
                held_out.dataset,
                self.rows,
                target=self.target,
                ttt_steps=self.config.ttt_steps,
                parity_rows=self.parity_rows,
                folder=folder / LOGITS,
                report=self.report,
            )
        self.report.say(f"{tally.outside} of {tally.positions[0]} held-out labels lie outside of the draft vocabulary.")
        return tally

    def _bytes(self, layer: LlamaConfig, vocabulary: Vocabulary) -> int:
        """Disk for the state (written beside the one before it), the checkpoint and the logits, generously."""
        drafter: int = layer.vocab_size * layer.hidden_size + 16 * layer.hidden_size * (layer.hidden_size + layer.intermediate_size)
        logits = sum(len(self.rows.conversations[row].tokens) for row in self.rows.held_out[: self.parity_rows])
        return 30 * drafter + 4 * logits * vocabulary.size * self.config.ttt_steps + 2**26


def trainer_settings(config: TrainConfig, placement: Placement, folder: Path, total_steps: int, arguments: dict[str, Any]) -> TrainerConfig:
    """The library's `TrainerConfig`, whole. Checkpoints are ours (`tasks.train.state`), so its own are off."""
    train_kwargs, held_out_kwargs = Eagle3DraftModel.get_trainer_kwargs(**arguments)
    if placement.device == "cpu":
        train_kwargs["loss_config"] = held_out_kwargs["loss_config"] = {"kl_div": (kernels.kl_divergence, 1.0)}
    return TrainerConfig(
        lr=config.lr,
        num_epochs=config.epochs,
        save_path=str(folder),
        resume_from_checkpoint=False,
        train_call_kwargs=train_kwargs,
        val_call_kwargs=held_out_kwargs,
        optimizer=config.optimizer,
        weight_decay=config.weight_decay,
        muon_lr=config.lr,
        muon_momentum=0.95,
        muon_weight_decay=config.weight_decay,
        muon_ns_steps=5,
        muon_adjust_lr_fn="match_rms_adamw",
        scheduler_type="cosine",
        scheduler_warmup_steps=int(total_steps * config.warmup_ratio),
        scheduler_warmup_ratio=None,
        scheduler_total_steps=total_steps,
        scheduler_num_cosine_cycles=0.5,
        checkpoint_freq=1,
        save_best=False,
        hidden_states_dtype=getattr(torch, placement.dtype),
        log_freq=config.log_every_steps,
        fsdp_shard=False,
        gradient_checkpointing=False,
        max_steps=None,
    )
