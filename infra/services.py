"""`make up` and `make down`: Prefect server, MLflow server and a worker on this machine, with our deployments.
`make serve`: the worker of a machine or environment that serves for runs that train elsewhere.

Everything listens on 127.0.0.1. What was started is on record in `DRAFTPROOF_HOME/services/`, by process id and start
time, so that `down` ends those processes and no others, and `up` twice starts nothing twice.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, NoReturn

import httpx
import typer
from pydantic import BaseModel, ConfigDict

from flows.automations import ADDRESS, bring_up_to_date, schedules_kept, webhook_address
from flows.pools import QUEUE, deploy_serving
from flows.prefect_api import pass_by_proxies, without_password
from tasks.addresses import told
from tasks.ledger.store import artifact_root, connect, tracking_uri
from tasks.processes import Process, end_processes
from tasks.store import home, locked, write_atomic
from tasks.verdict import BadInput, DraftproofError, MachineTrouble

_PROJECT = Path(__file__).resolve().parent.parent
_BIN = Path(sys.executable).parent
_DEPLOYMENTS = Path("infra/prefect.yaml")
_POOL, _SERVING_POOL = "draftproof", "draftproof-serving"
_PROFILE = "draftproof"
_START_SECONDS = 180

app = typer.Typer(add_completion=False, help=__doc__)


class Service(BaseModel):
    """One process that `up` started."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    process: Process
    url: str | None = None


def _folder() -> Path:
    return home() / "services"


def running() -> dict[str, Service]:
    """The services that live, by name."""
    services = (Service.model_validate_json(path.read_text()) for path in _folder().glob("*.json"))
    return {service.name: service for service in services if service.process.alive}


def _environment(prefect_url: str, mlflow_url: str) -> dict[str, str]:
    """What the worker, and the flows that it starts, are told: not the webhook's address, which Prefect's server alone needs."""
    pass_by_proxies()
    return {
        **{name: value for name, value in os.environ.items() if name != ADDRESS},
        "PREFECT_API_URL": f"{prefect_url}/api",
        "PREFECT_HOME": str(home() / "prefect"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "MLFLOW_TRACKING_URI": mlflow_url,
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DRAFTPROOF_HOME": str(home()),
    }


def _start(name: str, command: list[str], environment: dict[str, str], *, url: str | None = None, health: str | None = None) -> None:
    """Start it in a session of its own, unless it runs; return when it answers. Raises MachineTrouble."""
    if name in running():
        print(f"{name} runs already")
        return
    log = _folder() / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        child = subprocess.Popen(
            command, cwd=_PROJECT, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    process = Process.of(child.pid)
    if process is None:
        raise MachineTrouble(f"{name} ended at once; see {log}")
    write_atomic(_folder() / f"{name}.json", Service(name=name, process=process, url=url).model_dump_json(indent=1))
    if health is not None:
        _wait(name, child, health, log)
    print(f"{name}: {url or 'started'} (log {log})")


def _wait(name: str, child: subprocess.Popen[bytes], health: str, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if child.poll() is not None:
            tail = log.read_text(errors="replace").strip().splitlines()[-1:]
            raise MachineTrouble(f"{name} ended with status {child.returncode}: {''.join(tail)} (log {log}). Is its port taken?")
        try:
            if httpx.get(health, timeout=5, trust_env=False).status_code == httpx.codes.OK:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.3)
    raise MachineTrouble(f"{name} did not answer at {health} within {_START_SECONDS} s; see {log}")


def _prefect(arguments: list[str], environment: dict[str, str], *, unless: str | None = None) -> None:
    """Raises MachineTrouble with Prefect's words, `unless` they hold this."""
    done = subprocess.run(
        [str(_BIN / "prefect"), "--no-prompt", *arguments],
        cwd=_PROJECT,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    if done.returncode and (unless is None or unless not in done.stdout + done.stderr):
        raise MachineTrouble(f"prefect {' '.join(arguments)}: {(done.stderr or done.stdout).strip()}")


def _make_pool(pool: str, environment: dict[str, str]) -> None:
    """One run at a time has a machine: its cores, its GPU, its cache. Looking at a server's metrics needs none of them."""
    _prefect(["work-pool", "create", pool, "--type", "process"], environment, unless="already exists")
    _prefect(["work-queue", "create", QUEUE, "--pool", pool, "--limit", "1"], environment, unless="already exists")


def _deploy(environment: dict[str, str], address: str | None) -> None:
    """Pool, automations and deployments of the side that trains."""
    api = environment["PREFECT_API_URL"]
    _make_pool(_POOL, environment)
    automations = bring_up_to_date(api, address)
    print(f"automations: {', '.join(automations)}" + ("" if address else f" (nobody is told of failures: {ADDRESS} is not set)"))
    with schedules_kept(api):
        _prefect(["deploy", "--all", "--prefect-file", str(_DEPLOYMENTS)], environment)


@app.command()
def up(
    prefect_port: Annotated[int, typer.Option(help="Port of the Prefect server.")] = 4200,
    mlflow_port: Annotated[int, typer.Option(help="Port of the MLflow server.")] = 5000,
    profile: Annotated[bool, typer.Option(help="Make the Prefect profile `draftproof` the active one, until `down`.")] = True,
) -> None:
    """Start what is not running, and bring the deployments up to date."""
    prefect_url, mlflow_url = f"http://127.0.0.1:{prefect_port}", f"http://127.0.0.1:{mlflow_port}"
    environment, address = _environment(prefect_url, mlflow_url), webhook_address()
    store = tracking_uri()
    if store.startswith("http"):
        do = "Unset it: `make up` starts MLflow's server; a database is named as postgresql://… or sqlite:///…"
        raise BadInput("MLFLOW_TRACKING_URI", found=told(store), expected="where MLflow's server keeps its tables", do=do)
    connect()  # a fresh SQLite file is initialised by one process alone
    _start(
        "prefect",
        [str(_BIN / "prefect"), "server", "start", "--host", "127.0.0.1", "--port", str(prefect_port)],
        {**environment, "PREFECT_SERVER_API_HOST": "127.0.0.1"},
        url=prefect_url,
        health=f"{prefect_url}/api/health",
    )
    artifacts = artifact_root(store)
    _start(
        "mlflow",
        [str(_BIN / "mlflow"), "server", "--host", "127.0.0.1", "--port", str(mlflow_port), "--workers", "1"]
        + (["--artifacts-destination", str(artifacts)] if artifacts else []),
        {**environment, "MLFLOW_BACKEND_STORE_URI": store},  # it may hold a password, which is on no command line
        url=mlflow_url,
        health=f"{mlflow_url}/health",
    )
    _deploy(environment, address)
    _start("worker", [str(_BIN / "prefect"), "worker", "start", "--pool", _POOL, "--type", "process", "--name", "draftproof"], environment)
    if profile:
        _use_profile(f"{prefect_url}/api")
    print("next: prefect deployment run train-verify-deploy/demo --watch")


@app.command()
def down() -> None:
    """End what `up` started, the worker and its runs first."""
    order = ["worker", "mlflow", "prefect"]
    for service in sorted(running().values(), key=lambda each: order.index(each.name)):
        end_processes(service.process, [])
        print(f"{service.name} ended")
    for path in _folder().glob("*.json"):
        path.unlink()
    _leave_profile()


@app.command()
def worker() -> None:
    """Be the worker that trains, for servers that were started elsewhere (infra/compose.yaml), until Ctrl-C."""
    environment = _addresses()
    _deploy(environment, webhook_address())
    _be_worker(_POOL, environment)


@app.command()
def serve(pool: Annotated[str, typer.Option(help="Its work pool: `serving.pool` of the configurations.")] = _SERVING_POOL) -> None:
    """Be the worker of a machine or environment that serves for runs that train elsewhere, until Ctrl-C."""
    environment = _addresses()
    _make_pool(pool, environment)
    os.environ.update(environment)
    deploy_serving(pool, socket.gethostname())
    _be_worker(pool, environment)


def _addresses() -> dict[str, str]:
    """The environment of a worker for servers that run already. Raises BadInput without their addresses."""
    for name in ("PREFECT_API_URL", "MLFLOW_TRACKING_URI"):
        if not os.environ.get(name):
            do = "`make up` there has http://127.0.0.1:4200/api and http://127.0.0.1:5000; another machine needs a tunnel to them."
            raise BadInput(name, found="nothing", expected="the address that the side which trains uses", do=do)
    prefect = without_password(os.environ["PREFECT_API_URL"]).rstrip("/").removesuffix("/api")
    return _environment(prefect, os.environ["MLFLOW_TRACKING_URI"])


def _be_worker(pool: str, environment: dict[str, str]) -> NoReturn:
    command = [str(_BIN / "prefect"), "worker", "start", "--pool", pool, "--type", "process", "--name", socket.gethostname()]
    os.chdir(_PROJECT)
    os.execve(command[0], command, environment)


def _use_profile(api: str) -> None:
    """So that `prefect` works as typed, in any folder. The profile that was active before is written down."""
    from prefect.settings import load_profiles, save_profiles

    profiles = load_profiles(include_defaults=False)
    before = profiles.active_name
    profiles.update_profile(name=_PROFILE, settings={"PREFECT_API_URL": api})
    profiles.set_active(_PROFILE)
    save_profiles(profiles)
    if before != _PROFILE:
        write_atomic(_folder() / "profile-before", before or "")
    print(f"Prefect profile {_PROFILE!r} is active until `make down`")


def _leave_profile() -> None:
    from prefect.settings import load_profiles, save_profiles

    note = _folder() / "profile-before"
    if not note.is_file():
        return
    profiles = load_profiles(include_defaults=False)
    if profiles.active_name == _PROFILE:
        profiles.set_active(note.read_text() or None, check=False)
        save_profiles(profiles)
    note.unlink()


if __name__ == "__main__":
    try:
        with locked(home() / "services.lock"):
            app(standalone_mode=False)
    except DraftproofError as error:
        print(f"draftproof: {error}", file=sys.stderr)
        sys.exit(error.exit_status)
