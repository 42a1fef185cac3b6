"""Tiny drafters: written here tensor by tensor in SGLang's form, or by speculators itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tasks.verify.architecture import read_architecture
from tasks.verify.checkpoint import slots

LAYERS, HIDDEN, VOCAB, DRAFT_VOCAB = 6, 64, 96, 40
BOUNDARIES = [1, 3, 4]
FLAG_COMBINATIONS = [
    {},
    {"norm_before_fc": True},
    {"fc_norm": True},
    {"norm_output": True},
    {"norm_before_residual": True},
    {"norm_before_fc": True, "norm_output": True},
    {"fc_norm": True, "norm_output": True, "norm_before_residual": True},
]


def config(**changes: Any) -> dict[str, Any]:
    """A drafter for `tests.tiny.tiny_llama`, in SGLang's form (boundary k has id k-1 on the llama family)."""
    flags = {key: changes.pop(key) for key in ("norm_before_fc",) if key in changes}
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": HIDDEN // 4,
        "vocab_size": VOCAB,
        "draft_vocab_size": DRAFT_VOCAB,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "tie_word_embeddings": False,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [b - 1 for b in BOUNDARIES], **flags},
        **changes,
    }


def offsets(seed: int = 0, draft: int = DRAFT_VOCAB, vocab: int = VOCAB) -> torch.Tensor:
    """`d2t` of a random draft vocabulary, in ascending order of the target's ids."""
    chosen = torch.randperm(vocab, generator=torch.Generator().manual_seed(seed))[:draft].sort().values
    return chosen - torch.arange(draft)


def tensors(settings: dict[str, Any], seed: int = 0, scale: float = 0.15) -> dict[str, torch.Tensor]:
    """Random weights for a config, under original EAGLE-3 names. Uneven norm weights make a skipped norm visible."""
    generator = torch.Generator().manual_seed(seed)
    architecture = read_architecture(settings, "config")
    made: dict[str, torch.Tensor] = {}
    for name, slot in slots(architecture).items():
        if name in ("t2d", "embed_tokens.weight"):
            continue
        if name == "d2t":
            made[name] = offsets(seed, architecture.draft_vocab_size, architecture.vocab_size)
        elif len(slot.shape) == 1:
            made[name] = 0.5 + torch.rand(slot.shape, generator=generator)
        else:
            made[name] = scale * torch.randn(slot.shape, generator=generator)
    return {name.replace("layers.0.", "midlayer."): tensor for name, tensor in made.items()}


def write(folder: Path, settings: dict[str, Any], weights: dict[str, torch.Tensor]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / "model.safetensors")
    return folder


def random_drafter(folder: Path, *, seed: int = 0, **changes: Any) -> Path:
    """A healthy random drafter."""
    settings = config(**changes)
    return write(folder, settings, tensors(settings, seed))


def rewrite(folder: Path, *, drop: str | None = None, add: dict[str, torch.Tensor] | None = None, **changes: Any) -> Path:
    """Tamper: drop or add a tensor, change the config."""
    settings = json.loads((folder / "config.json").read_text())
    weights = load_file(folder / "model.safetensors")
    if drop:
        del weights[drop]
    return write(folder, {**settings, **changes}, {**weights, **(add or {})})


def speculators_model(target: Path, *, seed: int = 0, boundaries: list[int] = BOUNDARIES, **flags: bool) -> Any:
    """speculators' own Eagle3DraftModel for the tiny target, random, float32."""
    from speculators.models.eagle3 import Eagle3DraftModel
    from transformers import LlamaConfig

    torch.manual_seed(seed)
    not_the_layers = ("architectures", "model_type", "draft_vocab_size", "eagle_config")
    layer = LlamaConfig(**{key: value for key, value in config().items() if key not in not_the_layers})
    d2t = offsets(seed)
    t2d = torch.zeros(VOCAB, dtype=torch.bool)
    t2d[d2t + torch.arange(DRAFT_VOCAB)] = True
    every_flag = {"norm_before_residual": False, "norm_before_fc": False, "fc_norm": False, "norm_output": False, **flags}
    model = Eagle3DraftModel.from_training_args(
        verifier_config=layer,
        t2d=t2d,
        d2t=d2t,
        verifier_name_or_path=str(target),
        draft_vocab_size=DRAFT_VOCAB,
        target_layer_ids=boundaries,
        draft_attn_impl="sdpa",
        ttt_steps=3,
        **every_flag,
    ).float()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name and "verifier" not in name:
                weight.uniform_(0.5, 1.5)
            elif name.startswith(("fc.", "layers.")):
                weight.normal_(0, 0.15)
    return model.eval()


def speculators_logits(model: Any, tokens: torch.Tensor, features_SnH: torch.Tensor, steps: int) -> torch.Tensor:
    """Logits [steps, S-1, Vd] of the library's own forward on one row, shifted as its loader shifts."""
    from speculators.models.eagle3.data import shift_batch

    S = len(tokens)
    batch = shift_batch(
        {
            "input_ids": tokens,
            "hidden_states": features_SnH.flatten(1),
            "verifier_last_hidden_states": features_SnH[:, -1],
            "loss_mask": torch.ones(S, dtype=torch.bool),
            "lengths": torch.tensor([S]),
            "position_ids": torch.arange(S),
        }
    )
    seen: list[torch.Tensor] = []
    hook = model.lm_head.register_forward_hook(lambda module, inputs, output: seen.append(output[0].detach()))
    with torch.no_grad():
        model(
            hidden_states=batch["hidden_states"][None],
            input_ids=batch["input_ids"][None],
            document_ids=torch.zeros(1, S - 1, dtype=torch.long),
            position_ids=batch["position_ids"][None],
            ttt_steps=steps,
        )
    hook.remove()
    return torch.stack(seen)
