"""The drafter as the library builds it: every architecture flag set here, none left to a default."""

from __future__ import annotations

from typing import Any

import torch
from speculators.models.eagle3 import Eagle3DraftModel
from speculators.models.utils import get_verifier_config, resolve_draft_intermediate_size
from transformers import LlamaConfig, PretrainedConfig

from tasks.config import TrainConfig
from tasks.products import TargetProduct
from tasks.train import kernels
from tasks.train.vocabulary import Vocabulary
from tasks.verdict import BadInput
from tasks.wiring.record import Draft, Rope
from tasks.wiring.translate import speculators_ids


def layer_config(target: TargetProduct) -> LlamaConfig:
    """The one decoder layer, a Llama one of the target's sizes and with its resolved RoPE.

    Raises BadInput when the target's RoPE cannot be told in one set of values.
    """
    of_target: PretrainedConfig = get_verifier_config(str(target.folder))
    rope = dict(getattr(of_target, "rope_parameters", None) or {})
    if "rope_theta" not in rope:
        raise BadInput(
            str(target.folder / "config.json"),
            found=f"rope_parameters {rope}",
            expected="one rope_theta for all layers",
            do="A drafter for this target cannot be trained yet.",
        )
    heads = of_target.num_attention_heads
    return LlamaConfig(
        vocab_size=of_target.vocab_size,
        hidden_size=of_target.hidden_size,
        intermediate_size=resolve_draft_intermediate_size(of_target),
        num_hidden_layers=1,
        num_attention_heads=heads,
        num_key_value_heads=getattr(of_target, "num_key_value_heads", None) or heads,
        head_dim=getattr(of_target, "head_dim", None) or of_target.hidden_size // heads,
        hidden_act="silu",
        max_position_embeddings=of_target.max_position_embeddings,
        initializer_range=0.02,
        rms_norm_eps=of_target.rms_norm_eps,
        use_cache=True,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
        tie_word_embeddings=False,
        rope_parameters=rope,
        attention_bias=False,
        attention_dropout=0.0,
        mlp_bias=False,
    )


def draft_record(config: TrainConfig, layer: LlamaConfig) -> Draft:
    """The architecture as the wiring record tells it."""
    rope = dict(layer.rope_parameters)
    return Draft(
        hidden_size=layer.hidden_size,
        intermediate_size=layer.intermediate_size,
        num_attention_heads=layer.num_attention_heads,
        num_key_value_heads=layer.num_key_value_heads,
        head_dim=layer.head_dim,
        rms_norm_eps=layer.rms_norm_eps,
        hidden_act=layer.hidden_act,
        max_position_embeddings=layer.max_position_embeddings,
        rope=Rope(theta=rope.pop("rope_theta"), type=rope.pop("rope_type", "default"), head_dim=layer.head_dim, scaling=rope),
        norm_before_fc=config.norm_before_fc,
        fc_norm=config.fc_norm,
        norm_output=config.norm_output,
        ttt_steps=config.ttt_steps,
    )


def library_arguments(config: TrainConfig, *, target: TargetProduct, boundaries: list[int], draft_size: int, device: str) -> dict[str, Any]:
    """What `from_training_args` and `get_trainer_kwargs` (models/eagle3/core.py, speculators 0.9.0) read.

    Flex attention has no backward on a CPU, and the fused losses are Triton kernels: there `tasks.train.kernels` steps in.
    """
    on_gpu = device == "cuda"
    return {
        "verifier_name_or_path": str(target.folder),
        "trust_remote_code": target.trust_remote_code,
        "target_layer_ids": speculators_ids(boundaries),
        "draft_vocab_size": draft_size,
        "norm_before_residual": False,  # SGLang cannot serve True
        "norm_before_fc": config.norm_before_fc,
        "fc_norm": config.fc_norm,
        "norm_output": config.norm_output,
        "embed_requires_grad": False,
        "ttt_steps": config.ttt_steps,
        "ttt_step_loss_decay": config.ttt_step_loss_decay,
        "draft_attn_impl": "simple_flex_attention" if on_gpu else kernels.ATTENTION,
        "loss_fn": "kl_div",
        "loss_implementation": "fused" if on_gpu else "eager",
    }


def new_drafter(layer: LlamaConfig, vocabulary: Vocabulary, arguments: dict[str, Any], seed: int) -> Eagle3DraftModel:
    """A drafter with random layers, and the target's embedding and head rows (both frozen by the library)."""
    torch.manual_seed(seed)
    return Eagle3DraftModel.from_training_args(layer, t2d=vocabulary.t2d, d2t=vocabulary.d2t, **arguments)
