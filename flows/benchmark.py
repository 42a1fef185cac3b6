"""`draftproof benchmark`: the flow in this process, watched at the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flows.outcome import RunReport
from flows.run import reported, run_flow
from tasks.config import load
from tasks.verdict import BadInput

STAGES = ("target", "verify", "benchmark")


def check_asked(drafter: Path | None, plain: str | None, speculative: str | None) -> None:
    """Raises BadInput for one address without the other, or a folder that is not there."""
    if (plain is None) != (speculative is None):
        raise BadInput(
            "--plain, --speculative",
            found=f"only {plain or speculative}",
            expected="both addresses, or neither",
            do="Name the server without speculation and the one with it.",
        )
    if drafter is not None and not drafter.is_dir():
        raise BadInput(str(drafter), found="no folder", expected="the folder of an EAGLE-3 drafter", do="Name the checkpoint.")


def benchmark_here(
    config: Path, overrides: Sequence[str], drafter: Path | None, plain: str | None, speculative: str | None, json: Path | None
) -> int:
    """The exit status."""

    def prepared() -> Callable[[], Any]:
        from flows.benchmark_drafter import Parameters, benchmark_drafter

        parameters = Parameters(
            config_file=str(config.resolve()),
            overrides=list(overrides),
            drafter=str(drafter.resolve()) if drafter else None,
            plain=plain,
            speculative=speculative,
        )
        return lambda: benchmark_drafter(parameters, return_state=True)

    def made() -> RunReport:
        # Before anything is started.
        load(config, list(overrides))
        check_asked(drafter, plain, speculative)
        return run_flow(prepared, STAGES)

    return reported(made, json)
