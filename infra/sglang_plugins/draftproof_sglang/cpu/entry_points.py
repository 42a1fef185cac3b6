"""What SGLang calls: `activate` (group `sglang.srt.platforms`) and `register` (group `sglang.srt.plugins`)."""

from __future__ import annotations

IN_TREE_PLATFORM = "sglang.srt.platforms.cpu.CpuSRTPlatform"
OUR_PLATFORM = "draftproof_sglang.cpu.platform.CpuTorchPlatform"


def activate() -> str | None:
    """The platform class for this process, by name; None where SGLang's CPU engine was not asked for.

    SGLang resolves its platform in every process before it first imports `sgl_kernel`, so this is where the stand-in goes in;
    `register` is too late, since unpickling the spawned scheduler's target imports the scheduler first.
    """
    from draftproof_sglang.cpu import self_check, standin

    if not standin.cpu_engine_asked():
        return None
    if not standin.needed():
        return IN_TREE_PLATFORM
    self_check.or_exit(self_check.version)
    if not standin.installed():
        standin.install()
    return OUR_PLATFORM


def register() -> None:
    """Add the attention backend and the hooks. Raises SystemExit where SGLang is another, since it swallows any `Exception` of a plugin."""
    from draftproof_sglang.cpu import hooks, self_check, standin

    if not standin.needed():
        return
    self_check.or_exit(self_check.version, self_check.targets)
    hooks.register()
