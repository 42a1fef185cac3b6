"""What training hands over, made in a second: the library's own draft model with random weights, and its own logits."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tasks.config import ExportConfig
from tasks.export import export_drafter
from tasks.products import CaptureProduct, DrafterProduct, StepCounts, TargetProduct, TrainProduct
from tasks.report import Silent
from tasks.store import Store, sha256_file, sha256_folder, sha256_json
from tasks.wiring.record import Draft, Features, TargetPrint, WiringRecord
from tasks.wiring.rope import resolve
from tasks.wiring.vocabulary import vocab_map

STEPS, ROWS, TOKENS = 3, (5, 6, 8), 24


@dataclass(frozen=True)
class Made:
    """Products of the stages before export."""

    train: TrainProduct
    capture: CaptureProduct
    target: TargetProduct

    def export(self, home: Path, config: ExportConfig | None = None, **changed: Any) -> DrafterProduct:
        store = Store(home)
        return export_drafter(config or ExportConfig(), **{**self.products(), **changed}, store=store, report=Silent())

    def products(self) -> dict[str, Any]:
        return {"train": self.train, "capture": self.capture, "target": self.target}

    @property
    def checkpoint(self) -> Path:
        return self.train.folder / "checkpoint"

    def edited(self, config: Any = None, tensors: Any = None, record: Any = None) -> Made:
        """The same with its checkpoint changed in place by functions of its config, tensors and wiring record."""
        folder = self.checkpoint
        if config is not None:
            value = json.loads((folder / "config.json").read_text())
            (folder / "config.json").write_text(json.dumps(config(value) or value))
        if tensors is not None:
            weights = load_file(folder / "model.safetensors")
            save_file(tensors(weights) or weights, folder / "model.safetensors")
        if record is not None:
            record(WiringRecord.read(folder)).write(folder)
        return replace(self, train=self.train.model_copy(update={"sha256": sha256_folder(folder)}))


def target_product(folder: Path) -> TargetProduct:
    config = json.loads((folder / "config.json").read_text())
    printed = TargetPrint(
        config=sha256_file(folder / "config.json"),
        weights=sha256_file(folder / "model.safetensors"),
        tokenizer="0" * 64,
        chat_template="0" * 64,
        family=config["model_type"],
        num_layers=config["num_hidden_layers"],
        hidden_size=config["hidden_size"],
        vocab_size=config["vocab_size"],
    )
    return TargetProduct(folder=folder, name="tiny", print=printed, sha256=sha256_json(printed.model_dump()))


def make(
    folder: Path,
    target_folder: Path,
    *,
    boundaries: tuple[int, ...] = (0, 2, 4),
    draft_size: int = 32,
    seed: int = 0,
    identity: bool = False,
    layer: dict[str, Any] | None = None,
    **flags: bool,
) -> Made:
    """A checkpoint of speculators' Eagle3DraftModel on `boundaries`, with the records and logits that belong to it."""
    target = target_product(target_folder)
    model = _draft_model(target, boundaries, draft_size, seed, identity, layer or {}, flags)
    checkpoint = folder / "train" / "checkpoint"
    model.to(torch.bfloat16).save_pretrained(checkpoint)
    record = WiringRecord(
        target=target.print,
        features=Features(boundaries=list(boundaries), dtype="bfloat16", compute_dtype="float32"),
        data_sha256="1" * 64,
    )
    (folder / "capture").mkdir()
    record.write(folder / "capture")
    trained = record.model_copy(update={"draft": _draft(model), "vocab_map": vocab_map(model.d2t, target.print.vocab_size)})
    trained.write(checkpoint)
    for row in ROWS:
        _write_logits(folder / "train" / "trainer_logits", row, model.float(), target.print, len(boundaries))
    return Made(
        train=TrainProduct(
            folder=folder / "train",
            sha256=sha256_folder(checkpoint),
            steps=[StepCounts(right=right, positions=10) for right in (6, 4, 3)],
            logits_rows=list(ROWS),
            optimizer_steps=1,
            train_tokens_per_second=1.0,
        ),
        capture=CaptureProduct(
            folder=folder / "capture", sha256="2" * 64, boundaries=list(boundaries), rows=9, tokens=99, worst_cosine=1.0
        ),
        target=target,
    )


def _draft_model(
    target: TargetProduct, boundaries: Any, draft_size: int, seed: int, identity: bool, layer: dict[str, Any], flags: Any
) -> Any:
    from speculators.models.eagle3 import Eagle3DraftModel
    from transformers import LlamaConfig

    sizes = json.loads((target.folder / "config.json").read_text())
    torch.manual_seed(seed)
    vocab = target.print.vocab_size
    chosen = torch.arange(draft_size) if identity else torch.randperm(vocab)[:draft_size].sort().values
    of_layer = {
        "vocab_size": vocab,
        "hidden_size": sizes["hidden_size"],
        "intermediate_size": 80,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "tie_word_embeddings": False,
        **layer,
    }
    arguments = {"norm_before_residual": False, "norm_before_fc": False, "fc_norm": False, "norm_output": False, **flags}
    model = Eagle3DraftModel.from_training_args(
        LlamaConfig(**of_layer),
        t2d=torch.zeros(vocab, dtype=torch.bool).index_fill(0, chosen, True),
        d2t=chosen - torch.arange(draft_size),
        verifier_name_or_path=str(target.folder),
        draft_vocab_size=draft_size,
        target_layer_ids=list(boundaries),
        draft_attn_impl="sdpa",
        ttt_steps=STEPS,
        **arguments,
    )
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name and not name.startswith("verifier"):
                weight.uniform_(0.5, 1.5)
    return model.eval()


def _draft(model: Any) -> Draft:
    layer, config = model.config.transformer_layer_config, model.config
    sizes = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps", "hidden_act")
    return Draft(
        **{name: getattr(layer, name) for name in sizes},
        max_position_embeddings=layer.max_position_embeddings,
        rope=resolve(layer.to_dict()),
        norm_before_fc=config.norm_before_fc,
        fc_norm=config.fc_norm,
        norm_output=config.norm_output,
        ttt_steps=STEPS,
    )


@torch.inference_mode()
def _write_logits(folder: Path, row: int, model: Any, target: TargetPrint, features: int) -> None:
    """The library's own forward on random features, as `tasks.train` stores it."""
    from speculators.models.eagle3.data import shift_batch

    folder.mkdir(exist_ok=True)
    generator = torch.Generator().manual_seed(row)
    tokens = torch.randint(0, target.vocab_size, (TOKENS,), generator=generator)
    features_SnH = torch.randn(TOKENS, features, target.hidden_size, generator=generator).bfloat16()
    batch = shift_batch(
        {
            "input_ids": tokens,
            "hidden_states": features_SnH.flatten(1).float(),
            "verifier_last_hidden_states": torch.zeros(TOKENS, target.hidden_size),
            "loss_mask": torch.ones(TOKENS),
            "lengths": torch.tensor([TOKENS]),
            "position_ids": torch.arange(TOKENS),
        }
    )
    seen: list[torch.Tensor] = []
    hook = model.lm_head.register_forward_hook(lambda head, inputs, output: seen.append(output))
    length = len(batch["input_ids"])
    model(batch["hidden_states"][None], batch["input_ids"][None], torch.zeros(1, length, dtype=torch.long), ttt_steps=STEPS)
    hook.remove()
    tensors = {"token_ids": tokens, "features": features_SnH, "logits": torch.cat(seen)}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / f"{row}.safetensors")
