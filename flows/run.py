"""`draftproof run`: the flow in this process, watched at the terminal, with what came of it at the end."""

from __future__ import annotations

import shlex
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

from flows.estimate import SHARES
from flows.outcome import RunReport, StageName, write_json
from flows.prefect_api import prefect_api
from flows.progress import last_report, watch, watcher
from flows.story import table
from tasks.addresses import told
from tasks.config import load
from tasks.verdict import BadInput, DraftproofError, MachineTrouble

if TYPE_CHECKING:
    from rich.console import Console


def run_here(config: Path, overrides: Sequence[str], refresh: Sequence[str], json: Path | None, *, only_if_changed: bool) -> int:
    """The exit status."""

    def made() -> RunReport:
        # Before anything is started.
        load(config, list(overrides))
        _check_stages(refresh)
        return _flow(config.resolve(), overrides, refresh, only_if_changed=only_if_changed)

    return reported(made, json)


def reported(
    make: Callable[[], RunReport],
    json: Path | None,
    *,
    stage: str = "config",
    drafter: Path | None = None,
    tell: Callable[[RunReport], None] | None = None,
) -> int:
    """The exit status of what `make` reports, told at the terminal. Whatever happens, short of a signal, `json` is written.

    `stage` and `drafter`: what an error is reported of.
    """
    try:
        report = make()
    except DraftproofError as error:
        write_json(json, RunReport.of_error(error, stage, drafter=drafter))
        raise
    except Exception as error:
        write_json(json, RunReport.of_fault(error))
        raise
    write_json(json, report)
    (tell or _tell)(report)
    return report.exit_status


def _check_stages(names: Sequence[str]) -> None:
    unknown = [name for name in names if name not in get_args(StageName)]
    if unknown:
        raise BadInput("--refresh", found=", ".join(unknown), expected=", ".join(get_args(StageName)), do="Name a stage.")


def _flow(config: Path, overrides: Sequence[str], refresh: Sequence[str], *, only_if_changed: bool) -> RunReport:
    def prepared() -> Callable[[], Any]:
        from flows.train_verify_deploy import Parameters, train_verify_deploy

        stages = cast(list[StageName], list(refresh))
        parameters = Parameters(config_file=str(config), overrides=list(overrides), refresh=stages, only_if_changed=only_if_changed)
        return lambda: train_verify_deploy(parameters, return_state=True)

    return run_flow(prepared, tuple(SHARES))


def run_flow(prepare: Callable[[], Callable[[], Any]], stages: Sequence[str]) -> RunReport:
    """Run a flow in this process, with an API of its own where there is none. `prepare` imports it and gives what starts it."""
    with prefect_api() as api:
        start = prepare()  # the server starts meanwhile, which takes as long
        api.wait()
        with watch(stages) as display:
            watcher.set(display)
            state = start()
    report = last_report.get()
    if report is None:
        state.result()  # raises what ended the flow: a fault of ours
        raise AssertionError("a flow that ends without an error leaves a report")
    return report


def _tell(report: RunReport) -> None:
    """The table of figures, why it is no PASS, and where the rest is."""
    from rich.console import Console

    console = Console()
    if report.metrics:
        console.print(table(report))
    if report.verdict != "PASS":
        print(f"draftproof: {report.verdict}: {report.message}", file=sys.stderr)
    if report.mlflow_run_id:
        _tell_page(console, report.mlflow_run_id)
    if report.drafter:
        _line(console, f"drafter: {report.drafter}")


def _tell_page(console: Console, run_id: str) -> None:
    """The one command that opens the run's page, and the page. An MLflow server that is gone by now changes nothing of the verdict."""
    from tasks.ledger.store import connect, tracking_uri, usable

    uri = tracking_uri()
    try:
        with usable(uri):
            experiment = connect().get_run(run_id).info.experiment_id
    except MachineTrouble as error:
        print(f"draftproof: {error}", file=sys.stderr)
        return
    server = uri if uri.startswith("http") else f"http://127.0.0.1:{_port()}"
    console.print(
        f"this run in MLflow: {server.rstrip('/')}/#/experiments/{experiment}/runs/{run_id}", soft_wrap=True, highlight=False, markup=False
    )
    if server != uri:
        mlflow, port = str(Path(sys.executable).parent / "mlflow"), server.rpartition(":")[2]
        # A password is put on no command line.
        prefix, store = ("", ["--backend-store-uri", uri]) if told(uri) == uri else ('MLFLOW_BACKEND_STORE_URI="$MLFLOW_TRACKING_URI" ', [])
        command = prefix + shlex.join([mlflow, "ui", *store, "--port", port, "--workers", "1"])
        _line(console, f"open it with: {command}")


def _line(console: Console, text: str) -> None:
    """As it is, so that it can be copied: not wrapped, and with no `[…]` taken for markup."""
    console.print(text, soft_wrap=True, highlight=False, markup=False)


def _port() -> int:
    """5000 if it is free, as MLflow's own default, else any."""
    for port in (5000, 0):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise MachineTrouble("no free port on 127.0.0.1")
