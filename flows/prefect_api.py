"""A Prefect API for one run, when there is no server: started by us, and gone with us."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tasks.addresses import taken_apart
from tasks.store import home
from tasks.verdict import MachineTrouble

_START_SECONDS = 180  # 19 s on two quiet cores; a busy machine takes minutes
_END_SECONDS = 10
_POLL_SECONDS = 0.2

# As prefect/server/api/server.py of 3.9.1 starts its ephemeral server.
_SERVER = ["-m", "uvicorn", "--factory", "prefect.server.api.server:create_app", "--log-level", "error", "--lifespan", "on"]
_SERVER_SETTINGS = {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}

# Prefect 3.9.1's own ephemeral server is not used: it shares our process group, so that Ctrl-C ends it before the
# run's last state is written, it outlives a killed parent, and its start-up limit is too short for two cores.
# Read by Prefect when it is imported; a user's own setting wins.
_QUIET = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",  # our own display tells what happens
    "PREFECT_CLIENT_METRICS_ENABLED": "false",
}

# The kernel kills the server when its parent is gone (PR_SET_PDEATHSIG = 1 survives exec; prctl(2)).
_LAUNCH = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


class Api:
    """Where Prefect's API is, or will be."""

    def __init__(self, url: str, server: subprocess.Popen[bytes] | None = None, log: Path | None = None) -> None:
        self.url, self._server, self._log = url, server, log

    def wait(self) -> None:
        """Return when it answers. Raises MachineTrouble when our own server ended or is too slow."""
        if self._server is None:
            return
        deadline = time.monotonic() + _START_SECONDS
        while not self._healthy():
            if self._server.poll() is not None:
                raise MachineTrouble(f"Prefect's API server ended with status {self._server.returncode}; see {self._log}")
            if time.monotonic() > deadline:
                raise MachineTrouble(f"Prefect's API server did not answer within {_START_SECONDS} s; see {self._log}")
            time.sleep(_POLL_SECONDS)

    def _healthy(self) -> bool:
        # No proxy of the environment stands between us and our own machine.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"{self.url}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


@contextmanager
def prefect_api() -> Iterator[Api]:
    """Inside of it Prefect has an API: the one that `PREFECT_API_URL` names, else a server of our own on a free port.

    To be entered before Prefect is imported; the server starts meanwhile, and `Api.wait` waits for it.
    `PREFECT_HOME` is `prefect/` in `DRAFTPROOF_HOME` unless it is set. Raises MachineTrouble.
    """
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("PREFECT_HOME", str(home() / "prefect"))
    pass_by_proxies()
    given = os.environ.get("PREFECT_API_URL")
    if given:
        yield Api(without_password(given))
        return
    with _own_server(Path(os.environ["PREFECT_HOME"])) as api:
        os.environ["PREFECT_API_URL"] = api.url
        try:
            yield api
        finally:
            del os.environ["PREFECT_API_URL"]


def without_password(given: str) -> str:
    """A user and password move to the setting that Prefect has for them: it writes the address into its logs."""
    address = taken_apart(given)
    if address.user is not None:
        os.environ["PREFECT_API_URL"] = address.url
        os.environ["PREFECT_API_AUTH_STRING"] = f"{address.user}:{address.password or ''}"
    return address.url


def pass_by_proxies() -> None:
    """Prefect's client (httpx, websockets) sends what is for our own machine to the environment's proxy unless this says not to."""
    given = os.environ.get("no_proxy") or os.environ.get("NO_PROXY")
    os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(filter(None, [given, "127.0.0.1"]))


@contextmanager
def asked_of_prefect(what: str) -> Iterator[None]:
    """What Prefect's client raises, as MachineTrouble with its kind alone: its text may hold what was sent."""
    import httpx
    from prefect.exceptions import PrefectException

    try:
        yield
    except (PrefectException, httpx.HTTPError) as error:
        status = f" {error.response.status_code}" if isinstance(error, httpx.HTTPStatusError) else ""
        raise MachineTrouble(f"Prefect, asked for {what}: {type(error).__name__}{status}; its server's log says more") from None


@contextmanager
def _own_server(folder: Path) -> Iterator[Api]:
    """Prefect's server on a socket that is bound here, so that nobody can take the port meanwhile."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "server.log"
    with socket.create_server(("127.0.0.1", 0)) as listening, log.open("wb") as output:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/api"
        server = subprocess.Popen(
            [sys.executable, "-c", _LAUNCH, str(os.getpid()), sys.executable, *_SERVER, "--fd", str(listening.fileno())],
            env={**os.environ, **_SERVER_SETTINGS, "PREFECT_API_URL": ""},
            cwd=folder,
            pass_fds=[listening.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield Api(url, server, log)
    finally:
        _drain()
        server.terminate()
        try:
            server.wait(timeout=_END_SECONDS)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _drain() -> None:
    """Let Prefect send the logs and events that it still holds, while there is somebody to take them."""
    if "prefect" not in sys.modules:
        return
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    APILogWorker.drain_all(timeout=_END_SECONDS)
    EventsWorker.drain_all(timeout=_END_SECONDS)
