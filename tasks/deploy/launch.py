"""The launch contract, asked: a config becomes one SGLang command and one environment, with nothing left to defaults.

Both servers of a comparison get the same flags; SGLang's defaults differ with and without speculation
(`max_running_requests` becomes 48 with it, the overlap schedule is switched off on a CPU:
sglang 0.5.23, srt/arg_groups/speculative_hook.py:66-78, 1086-1096).
"""

from __future__ import annotations

import json
import os
import re
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tasks.config import DeployConfig
from tasks.deploy import keyed
from tasks.deploy.key import check_key
from tasks.device import cores, place
from tasks.store import sha256_json
from tasks.verdict import BadInput

# The CPU plugin (infra/sglang_plugins): its platform entry point, its general plugin and its attention backend.
CPU_PLATFORM = "draftproof_cpu"
CPU_ATTENTION = "cpu_sdpa"
# What is run as `python -m …`. The CPU's starts the same server with fewer imports. Both skip the question of
# `sglang serve` whether the model is a diffusion pipeline (sglang 0.5.23, cli/serve.py).
_MODULES = {"cpu": "draftproof_sglang.cpu.serve", "cuda": "sglang.launch_server"}
# Without it SGLang imports each of its 250 model files (sglang 0.5.23, srt/models/registry.py:153-159).
_CPU_MODELS = "draftproof_sglang.models"

# What records a probe request, imported by the server alone (infra/sglang_plugins); the modules are the drafter's body and
# its logits processor, by their names in SGLang's llama_eagle3.py.
_PROBE_HOOK = "draftproof_sglang.probe:hook"
_PROBED_MODULES = ["model", "logits_processor"]

# Variables that change what SGLang, torch or Python do: ours or none, never the caller's. One of them,
# SGLANG_SIMULATE_ACC_LEN, fakes the acceptance.
_NEVER_INHERITED = (
    *("SGLANG_", "SGL_", "OMP_", "MKL_", "KMP_", "TORCHDYNAMO_", "TORCHINDUCTOR_", "TRITON_", "PYTHON", "HF_", "TRANSFORMERS_"),
    # Read by SGLang 0.5.23 without a prefix of its own (`grep environ` below srt/): kernels and caching it chooses by,
    *("TRTLLM_", "FLASHINFER_", "AITER_", "USE_TRITON_W8A8_FP8_KERNEL", "IN_BATCH_PREFIX_CACHING_", "SYNC_TOKEN_IDS_ACROSS_TP", "IS_H200"),
    # and the places that a launcher such as torchrun gives its processes.
    *("RANK", "LOCAL_RANK", "LOCAL_SIZE", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
)

# Secrets that a server has no use for, by what such variables are called: it may run a model's own Python (trust_remote_code).
_SECRET = re.compile(r"^(MLFLOW|PREFECT|AWS)_|API_?KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)

Flags = dict[str, Any]


@dataclass(frozen=True)
class Launch:
    """What is asked of one server.

    `flags` are SGLang's `ServerArgs` fields: each one is on the command line or at a default that is asked for
    (False, None), and each one is compared with what the server resolved it to.
    """

    python: str
    flags: Flags
    environment: dict[str, str]
    identity: str = field(default_factory=lambda: f"draftproof-{secrets.token_hex(8)}")
    api_key_env: str | None = None
    """Where the key lies that it asks for; the key itself is read when it is started."""

    @property
    def speculative(self) -> bool:
        return self.flags["speculative_algorithm"] is not None

    @property
    def url(self) -> str:
        return f"http://{self.flags['host']}:{self.flags['port']}"

    def command(self) -> list[str]:
        """The command line. `weight_version` carries the identity: SGLang repeats it in every answer."""
        module = _MODULES[self.flags["device"]]
        run = ["-m", module] if self.api_key_env is None else [keyed.__file__, self.api_key_env, module]
        return [self.python, *run, *self.arguments()]

    def arguments(self) -> list[str]:
        """Of the command line, those that SGLang takes."""
        return _arguments({**self.flags, "weight_version": self.identity})

    def full_environment(self, inherited: Mapping[str, str] | None = None) -> dict[str, str]:
        """The whole environment of the server: what is inherited and harmless, then what we set."""
        source = os.environ if inherited is None else inherited
        kept = {k: v for k, v in source.items() if not k.startswith(_NEVER_INHERITED) and not _SECRET.search(k)}
        key = {k: v for k, v in source.items() if k == self.api_key_env}
        return kept | key | self.environment

    def record(self) -> dict[str, Any]:
        """For the ledger: command and the variables that we set; not what was inherited, which may hold secrets."""
        return {"command": self.command(), "environment": self.environment, "cleared": [*_NEVER_INHERITED, _SECRET.pattern]}

    def digest(self) -> str:
        """Hex SHA-256 of what decides how the server computes, and whom it answers: everything but port and identity."""
        flags = {name: value for name, value in self.flags.items() if name != "port"}
        return sha256_json([self.python, flags, self.environment, self.api_key_env])


def plan(config: DeployConfig, *, target: Path, drafter: Path | None, steps: int | None, port: int, probes: Path | None = None) -> Launch:
    """The launch of a server, pure but for asking torch whether there is a GPU.

    `probes`: a folder into which the server records what its drafter is fed in probe requests; it then runs without graphs.
    Raises BadInput for a GPU or an API key that is not there, and for a draft dtype that SGLang has no flag for.
    """
    check_key(config)
    if config.draft_dtype not in (None, config.dtype):
        raise BadInput(
            "deploy.draft_dtype",
            found=config.draft_dtype,
            expected=f"null or {config.dtype}: SGLang 0.5.23 computes the drafter in the target's dtype (srt/configs/model_config.py:965)",
            do="Set deploy.dtype, for both.",
        )
    device = place(config.device).device
    return Launch(
        python=config.python or sys.executable,
        flags={**_common(config, device, target, port), **_speculation(config, device, drafter, steps), **_probing(probes)},
        environment=_environment(config, device),
        api_key_env=config.api_key_env,
    )


def _common(config: DeployConfig, device: Literal["cpu", "cuda"], target: Path, port: int) -> Flags:
    cpu = device == "cpu"
    # Graphs for fewer requests than are served would leave the others without.
    graphs: Flags = {"cuda_graph_backend_decode": "disabled"} if cpu else {"cuda_graph_max_bs_decode": config.max_running_requests}
    return {
        "model_path": str(target),
        "served_model_name": config.served_name or target.name,
        "host": config.host,
        "port": config.port or port,
        "device": device,
        "tp_size": 1,
        "dp_size": 1,
        "pp_size": 1,
        "load_format": "safetensors",  # never a pickle
        "trust_remote_code": config.trust_remote_code,
        "skip_tokenizer_init": not config.tokenizer,
        "dtype": config.dtype,
        "quantization": None,
        "kv_cache_dtype": config.kv_dtype,
        "context_length": config.context_length,
        "max_running_requests": config.max_running_requests,
        "max_total_tokens": config.max_total_tokens,
        "mem_fraction_static": config.mem_fraction_static,
        "chunked_prefill_size": config.chunked_prefill_size,
        "page_size": config.page_size,
        "schedule_policy": "fcfs",
        "schedule_conservativeness": 1.0,
        "radix_eviction_policy": "lru",
        "disable_radix_cache": config.disable_radix_cache,
        "disable_overlap_schedule": cpu,
        "enable_mixed_chunk": False,
        "num_continuous_decode_steps": 1,
        "attention_backend": _attention(config, device),
        "sampling_backend": "pytorch",
        "enable_torch_compile": False,
        "enable_deterministic_inference": False,
        **graphs,
        "cuda_graph_backend_prefill": "disabled",
        "random_seed": 0,
        "sampling_defaults": "model",
        "enable_metrics": config.metrics,
        "sleep_on_idle": True,  # an idle server leaves the cores to the other one of a comparison
        "skip_server_warmup": True,  # readiness is a generation of our own
    }


def _speculation(config: DeployConfig, device: Literal["cpu", "cuda"], drafter: Path | None, steps: int | None) -> Flags:
    plain = drafter is None and steps is None
    return {
        "speculative_algorithm": None if plain else config.algorithm,
        "speculative_draft_model_path": None if drafter is None else str(drafter),
        "speculative_draft_load_format": None if plain else "safetensors",
        "speculative_draft_model_quantization": config.draft_quantisation,
        "speculative_num_steps": steps,
        "speculative_eagle_topk": None if plain else config.topk,
        "speculative_num_draft_tokens": None if steps is None else config.draft_tokens or steps + 1,
        "speculative_draft_window_size": None if plain else config.draft_window,
        "speculative_draft_sink_size": None,
        "speculative_draft_attention_backend": None if plain else _attention(config, device),
        "speculative_draft_kv_cache_dtype": None if plain else config.kv_dtype,
        "speculative_attention_mode": "prefill",
        "speculative_accept_threshold_single": 1.0,
        "speculative_accept_threshold_acc": 1.0,
        "speculative_use_rejection_sampling": False,
        "speculative_use_block_verification": False,
        "speculative_token_map": None,
        "speculative_adaptive": False,
        "enable_multi_layer_eagle": False,
    }


def _probing(probes: Path | None) -> Flags:
    """SGLang's own hooks: none unless asked for. Graphs would run without them (srt/model_executor/hook_manager.py)."""
    if probes is None:
        return {"forward_hooks": None}
    recording = {"hook_factory": _PROBE_HOOK, "target_modules": _PROBED_MODULES, "config": {"folder": str(probes)}}
    return {"forward_hooks": [{"name": "draftproof", **recording}], "cuda_graph_backend_decode": "disabled"}


def _attention(config: DeployConfig, device: Literal["cpu", "cuda"]) -> str:
    return config.attention_backend or {"cpu": CPU_ATTENTION, "cuda": "triton"}[device]


def _environment(config: DeployConfig, device: Literal["cpu", "cuda"]) -> dict[str, str]:
    threads = str(config.threads or cores())
    common = {
        "OMP_NUM_THREADS": threads,
        "PYTHONSAFEPATH": "1",  # the working directory shadows nothing
        "PYTHONNOUSERSITE": "1",
        "PYTHONUNBUFFERED": "1",  # a server that dies leaves its whole log
        "HF_HUB_OFFLINE": "1",  # target and drafter are folders
        "TRANSFORMERS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        # What its processes say to each other stays on this machine.
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
    }
    if device == "cuda":
        return common | {"SGLANG_PLUGINS": "none"}  # the name of no plugin: nothing that happens to be installed hooks itself in
    return common | {
        "SGLANG_USE_CPU_ENGINE": "1",
        "SGLANG_PLATFORM": CPU_PLATFORM,
        "SGLANG_PLUGINS": CPU_PLATFORM,
        "SGLANG_EXTERNAL_MODEL_PACKAGE": _CPU_MODELS,
        # Without it the first speculative request compiles for half a minute (facts/sglang.md).
        "TORCHDYNAMO_DISABLE": "1",
    }


def _arguments(flags: Flags) -> list[str]:
    """`ServerArgs` fields as command-line arguments: True is a bare flag, False and None are the default, lists are JSON."""
    words: list[str] = []
    for name, value in flags.items():
        if value is None or value is False:
            continue
        option = "--" + name.replace("_", "-")
        words += [option] if value is True else [option, json.dumps(value) if isinstance(value, list) else str(value)]
    return words
