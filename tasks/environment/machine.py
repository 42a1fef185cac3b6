"""The machine: what it has, and whether that is enough for a config. Linux only."""

from __future__ import annotations

import json
import platform
import re
import shutil
import socket
from collections.abc import Collection
from importlib import metadata
from pathlib import Path

from tasks.config import Config
from tasks.device import cores, place
from tasks.environment.record import Machine, Side
from tasks.store import home
from tasks.verdict import BadInput, MachineTrouble

_FEATURES = ("avx2", "avx512f", "avx512_bf16", "amx_tile", "amx_bf16")

# Beside the features: the target's folder, training checkpoints, logs, MLflow's files.
_DISK_ALLOWANCE = 3 * 10**9

# A SGLang 0.5.23 server without its weights: two servers of SmolLM2 (0.5 GB of float32 weights) had a PSS of 3.5 GB
# each, for three processes that share most of their libraries. Beside the two of a benchmark the pipeline itself.
_SERVER_MEMORY = 3_000_000_000
_PIPELINE_MEMORY = 1_000_000_000

# Sections whose `device` is used on a side.
_ON_DEVICES: dict[Side, tuple[str, ...]] = {
    "both": ("capture", "train", "verify", "deploy"),
    "training": ("capture", "train", "verify"),
    "serving": ("verify", "deploy"),
}

_NO_PLACE = "Free some, or take a larger machine."


def machine() -> Machine:
    """Reads /proc; takes milliseconds."""
    cpuinfo = _read("/proc/cpuinfo")
    flags = next(iter(re.findall(r"^flags\s*: (.*)$", cpuinfo, re.M)), "").split()
    memory = dict(re.findall(r"^(\w+):\s+(\d+) kB$", _read("/proc/meminfo"), re.M))
    total, available = int(memory["MemTotal"]) * 1024, int(memory["MemAvailable"]) * 1024
    limit = _cgroup("memory.max")
    if limit is not None:
        total, available = min(total, limit), min(available, limit - _cgroup_used())
    return Machine(
        platform=platform.platform(),
        cpu=next(iter(re.findall(r"^model name\s*: (.*)$", cpuinfo, re.M)), platform.machine()),
        cpu_features=[feature for feature in _FEATURES if feature in flags],
        cores=cores(),
        memory=total,
        memory_available=available,
        disk_free=shutil.disk_usage(_existing(home())).free,
        gpus=_gpus(),
    )


def hidden_size(source: str) -> int | None:
    """The target's hidden size without loading anything; None where it is not known before a download."""
    scheme, _, name = source.partition(":")
    if scheme == "hub":
        return None
    return _hidden_size_of_package(name) if scheme == "pypi" else _hidden_size_of_folder(Path(source))


def disk_needed(config: Config, side: Side = "both") -> int | None:
    """Bytes that a run writes, features first; None where the hidden size is not known yet (capture then checks).

    conversations × tokens × (boundaries + last state) × hidden size × 2 bytes (bfloat16), as if every conversation
    were as long as it may be. A run can find its features in the cache: at most one of the captures there, so that the
    largest is taken off.
    """
    if side == "serving":
        return _DISK_ALLOWANCE
    hidden = hidden_size(config.target.source)
    if hidden is None:
        return None
    tokens = config.data.conversations * (config.data.prompt_tokens + config.data.answer_tokens)
    features = tokens * (len(config.capture.boundaries or [0, 0, 0]) + 1) * hidden * 2
    cached = max((_size(folder) for folder in (home() / "cache" / "capture").glob("*/")), default=0)
    return max(0, features - cached) + _DISK_ALLOWANCE


def memory_needed(config: Config, side: Side = "both") -> int:
    """Bytes for the servers of a benchmark, with the target's weights in each, and for the pipeline. One of two machines has no servers.

    Weights count in the dtype that is served, as if they were stored in two bytes each; those of a hub's target are not
    known beforehand. A GPU holds its own.
    """
    return (0 if side == "training" else 2 * _server_memory(config)) + _PIPELINE_MEMORY


def has_room_for_server(config: Config) -> bool:
    """See `tasks.environment.has_room_for_server`. On a GPU the two that run tell what one needs: half of what is in use there."""
    if place(config.deploy.device).device == "cuda":
        import torch

        free, total = torch.cuda.mem_get_info()
        if free < (total - free) / 2:
            return False
    return machine().memory_available >= _server_memory(config)


def _server_memory(config: Config) -> int:
    """Bytes of one server in the machine's own memory."""
    source = Path(config.target.source)
    stored = sum(path.stat().st_size for path in source.glob("*.safetensors")) if source.is_dir() else 0
    weights = 0 if config.deploy.device == "cuda" else stored * (2 if config.deploy.dtype == "float32" else 1)
    return _SERVER_MEMORY + weights


def need_memory(found: Machine, needed: int) -> None:
    """Raises MachineTrouble, with the numbers, for too little free memory."""
    if found.memory_available < needed:
        raise MachineTrouble(
            f"memory: {found.memory_available / 1e9:.1f} of {found.memory / 1e9:.1f} GB free; the servers and the pipeline that run here "
            f"need about {needed / 1e9:.1f} GB. {_NO_PLACE}"
        )


def need_port(config: Config, kept_ports: Collection[int] = ()) -> None:
    """Raises MachineTrouble when the port that the config asks for is taken by anything but a kept server: a run lets that one serve."""
    if config.deploy.port is None or config.deploy.port in kept_ports:
        return
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((config.deploy.host, config.deploy.port))
        except OSError as error:
            raise MachineTrouble(
                f"deploy.port: {config.deploy.host}:{config.deploy.port} cannot be used ({error.strerror}). "
                "Stop what runs there (`draftproof deploy --stop` if it is ours), or set deploy.port: null for a free one."
            ) from error


def need_device(config: Config, found: Machine, side: Side = "both") -> None:
    """Raises BadInput for a stage that asks for a GPU where there is none: verification would tell hours later."""
    asked = {f"{name}.device": getattr(config, name).device for name in _ON_DEVICES[side]}
    for key, device in asked.items():
        if device == "cuda" and not found.gpus:
            raise BadInput(key, found="cuda, on a machine without an NVIDIA GPU", expected="cpu or auto", do=f"Set {key} to auto.")


def _hidden_size_of_folder(folder: Path) -> int | None:
    """From config.json; None where it says nothing readable (the target stage tells what is wrong with the folder)."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return int(config.get("text_config", config)["hidden_size"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _hidden_size_of_package(name: str) -> int | None:
    """From the header of the package's GGUF file: `<architecture>.embedding_length`, type 4 (uint32), little-endian."""
    try:
        files = [Path(str(file.locate())) for file in metadata.files(name) or [] if file.suffix == ".gguf"]
        with files[0].open("rb") as stream:
            header = re.search(rb"\.embedding_length\x04\0\0\0(....)", stream.read(65536), re.S)
    except (metadata.PackageNotFoundError, OSError, IndexError):
        return None
    return int.from_bytes(header[1], "little") if header else None


def _gpus() -> list[str]:
    """Names of NVIDIA GPUs by the driver's own files; torch would take seconds to say the same."""
    told = [_read(str(path)) for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))]
    names = [match[1].strip() for text in told if (match := re.search(r"^Model:\s*(.*)$", text, re.M))]
    return names or [f"NVIDIA ({path.name})" for path in sorted(Path("/dev").glob("nvidia[0-9]*"))]


def _cgroup(name: str) -> int | None:
    """A number of our control group (version 2); None without one, or without a limit."""
    text = _read(f"/sys/fs/cgroup/{name}").strip()
    return int(text) if text.isdigit() else None


def _cgroup_used() -> int:
    """What our control group holds, less its file cache, which the kernel gives up when memory is needed."""
    held = dict(re.findall(r"^(\w+) (\d+)$", _read("/sys/fs/cgroup/memory.stat"), re.M))
    cache = int(held.get("active_file", 0)) + int(held.get("inactive_file", 0))
    return max(0, (_cgroup("memory.current") or 0) - cache)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists: where it would be made."""
    return next(place for place in (folder, *folder.parents) if place.exists())


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
