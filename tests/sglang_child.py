"""Runs the pinned SGLang's own code on request, without a server: one JSON object per line in and out.

`{"capture": [module, class], "layers": L, "ids": [...] or null}`: SGLang's setter of that target class on these ids,
then its own forward over L layers that each add one to a zero stream, so that what it captures reads as the
boundary's number. `{"load": folder}`: its draft model built from the folder's config.json, its `load_weights` on
each tensor of the folder. Kernels are absent: no layer of a model is computed.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

os.environ |= {"SGLANG_USE_CPU_ENGINE": "1", "TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # whatever SGLang prints is no answer


def absent_kernels() -> None:
    """Let `import sgl_kernel` pass: the wheel's own needs libcuda. Calling a kernel raises."""

    def kernel(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def absent(*_: Any, **__: Any) -> None:
            raise RuntimeError(f"sgl_kernel.{name}: no kernel here")

        return absent

    module = types.ModuleType("sgl_kernel")
    module.__path__, module.__version__, module.__getattr__ = [], "0", kernel
    sys.modules["sgl_kernel"] = module


absent_kernels()

import torch  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from torch import nn  # noqa: E402
from transformers import LlamaConfig  # noqa: E402

ONLY_RANK = types.SimpleNamespace(is_first_rank=True, is_last_rank=True)
INNER = {  # the class that holds the layers
    "LlamaForCausalLM": "llama.LlamaModel",
    "MistralForCausalLM": "llama.LlamaModel",
    "Phi3ForCausalLM": "llama.LlamaModel",
    "Qwen2ForCausalLM": "qwen2.Qwen2Model",
    "Qwen3ForCausalLM": "qwen3.Qwen3Model",
    "Qwen2MoeForCausalLM": "qwen2_moe.Qwen2MoeModel",
    "Qwen3MoeForCausalLM": "qwen3_moe.Qwen3MoeModel",
    "DeepseekV2ForCausalLM": "deepseek_v2.DeepseekV2Model",
    "DeepseekV3ForCausalLM": "deepseek_v2.DeepseekV2Model",
    "KimiK25ForConditionalGeneration": "deepseek_v2.DeepseekV2Model",
}


def start() -> None:
    """Publish a configuration and build the process groups, as SGLang's own benchmark does."""
    from sglang.srt import runtime_context
    from sglang.srt.distributed import bootstrap
    from sglang.srt.server_args import PortArgs, ServerArgs

    folder = tempfile.mkdtemp()
    LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=4,
    ).save_pretrained(folder)
    arguments = ServerArgs(model_path=folder, device="cpu", skip_tokenizer_init=True)
    arguments.resolve_once()
    runtime_context.publish(arguments, role="scheduler", ranks=runtime_context.SpawnRanks(world_rank=0, gpu_id=0))
    port = PortArgs.init_new(arguments).nccl_port
    bootstrap.init_parallel_runtime(server_args=arguments, device="cpu", dist_port=port)


def sglang_class(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(__import__(f"sglang.srt.models.{module}", fromlist=[name]), name)


def hollow(cls: Any, **attributes: Any) -> Any:
    """An instance of SGLang's class without its weights: its own methods, our attributes."""
    instance = cls.__new__(cls)
    nn.Module.__init__(instance)
    for name, value in attributes.items():
        setattr(instance, name, value)
    return instance


class Block(nn.Module):
    """A decoder layer that adds one, and hands its input over when SGLang's forward asks for it."""

    def __init__(self, returns_pair: bool) -> None:
        super().__init__()
        self.returns_pair = returns_pair

    def forward(
        self, positions: Any, hidden: Any, *_: Any, capture_output: Any = None, captured_last_layer_outputs: Any = None, **__: Any
    ) -> Any:
        capture = captured_last_layer_outputs.capture if captured_last_layer_outputs is not None else capture_output
        if capture is not None:
            capture(hidden)
        return (hidden + 1, None) if self.returns_pair else hidden + 1


class Norm(nn.Module):
    def forward(self, hidden: Any, residual: Any = None) -> Any:
        return hidden if residual is None else (hidden, residual)


def capture(module: str, name: str, layers: int, ids: list[int] | None) -> dict[str, Any]:
    from sglang.srt.layers.aux_hidden_states import pack_aux_hidden_states

    inner = sglang_class(INNER[name])
    mla = INNER[name].startswith("deepseek")
    config = types.SimpleNamespace(num_hidden_layers=layers)
    body = hollow(
        inner,
        config=config,
        pp_group=ONLY_RANK,
        layers=nn.ModuleList(Block(returns_pair=mla) for _ in range(layers)),
        start_layer=0,
        end_layer=layers,
        norm=Norm(),
        layers_to_capture=[],
        use_dsa=False,
        first_k_dense_replace=0,
        llama_4_scaling_config=None,
        next_full_attention_layer_id={},
    )
    if name == "KimiK25ForConditionalGeneration":
        language = hollow(sglang_class("deepseek_v2.DeepseekV3ForCausalLM"), config=config, pp_group=ONLY_RANK, model=body)
        target = hollow(sglang_class(f"{module}.{name}"), config=config, language_model=language)
    else:
        target = hollow(sglang_class(f"{module}.{name}"), config=config, pp_group=ONLY_RANK, model=body)
    mode = types.SimpleNamespace(is_idle=lambda: False)
    batch = types.SimpleNamespace(can_run_tbo=False, residual_stream=None, forward_mode=mode, aux_hidden_states_buffer=None)
    target.set_eagle3_layers_to_capture(ids)
    out = body(None, torch.zeros(1, dtype=torch.long), batch, input_embeds=torch.zeros(1, 1))
    captured = pack_aux_hidden_states(out[1]).flatten().int().tolist() if isinstance(out, tuple) else []
    return {"entries": list(body.layers_to_capture), "captured": captured}


def state(model: Any) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def same(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(before[name].nan_to_num(nan=7e7), after[name].nan_to_num(nan=7e7)) for name in before)


def load(folder: str) -> dict[str, Any]:
    """Start at NaN, load one tensor at a time, and see what each did."""
    from sglang.srt.utils.hf_transformers_utils import get_config

    config = get_config(folder, trust_remote_code=False)
    model = sglang_class(f"llama_eagle3.{config.architectures[0]}")(config)
    for parameter in model.parameters():
        parameter.data.fill_(torch.nan)
    empty = {name: list(parameter.shape) for name, parameter in model.named_parameters()}
    dropped, stack = [], state(model)
    for name, tensor in sorted(load_file(Path(folder) / "model.safetensors").items()):
        model.hot_token_id, before_ids = None, model.hot_token_id
        model.load_weights([(name, tensor)])
        now = state(model)
        if same(stack, now) and model.hot_token_id is None:
            dropped.append(name)
        model.hot_token_id = before_ids if model.hot_token_id is None else model.hot_token_id
        stack = now
    rope = model.model.layers[0].self_attn.rotary_emb
    return {
        "parameters": empty,
        "dropped": dropped,
        "unloaded": [name for name, value in stack.items() if bool(value.isnan().all())],
        "partly": [
            name
            for name, value in stack.items()
            if name != "lm_head.weight" and bool(value.isnan().any()) and not bool(value.isnan().all())
        ],
        "target_ids": None if model.hot_token_id is None else model.hot_token_id.tolist(),
        "resolved": {
            "num_aux_hidden_states": model.model.num_aux_hidden_states,
            "norm_before_fc": model.model.norm_before_fc,
            "fc_norm": model.model.fc_norm is not None,
            "norm_output": bool(model.model.norm_output),
            "load_lm_head_from_target": model.load_lm_head_from_target,
            "tied": bool(config.tie_word_embeddings),
            "rms_norm_eps": model.model.norm.variance_epsilon,
            "rope_class": type(rope).__name__,
            "rope_theta": float(rope.base),
            "rope_max_position": rope.max_position_embeddings,
            "head_dim": rope.head_size,
            "rope_cos_sin": rope.cos_sin_cache[:4].flatten().tolist(),
        },
    }


def answer(request: dict[str, Any]) -> dict[str, Any]:
    try:
        if "capture" in request:
            return capture(*request["capture"], request["layers"], request["ids"])
        return load(request["load"])
    except Exception as error:
        return {"error": type(error).__name__, "message": str(error)}


if __name__ == "__main__":
    start()
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=answers, flush=True)
