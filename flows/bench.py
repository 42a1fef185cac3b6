"""`draftproof benchmark`: the flow in this process, watched at the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flows.outcome import RunReport, write_json
from flows.run import run_flow, tell
from tasks.config import load
from tasks.verdict import BadInput, DraftproofError

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
    """The exit status. Whatever happens, short of a signal, `json` is written."""

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

    try:
        # Before anything is started.
        load(config, list(overrides))
        check_asked(drafter, plain, speculative)
        report = run_flow(prepared, STAGES)
    except DraftproofError as error:
        write_json(json, RunReport.of_error(error, "config"))
        raise
    except Exception as error:
        write_json(json, RunReport.of_fault(error))
        raise
    write_json(json, report)
    tell(report)
    return report.exit_status
