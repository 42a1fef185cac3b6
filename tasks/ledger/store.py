"""Which MLflow store is used, and how it is made usable: quietly, and by one process at a time."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.addresses import taken_apart
from tasks.store import home, locked
from tasks.verdict import BadInput, MachineTrouble

if TYPE_CHECKING:
    from mlflow import MlflowClient

_SQLITE = "sqlite:///"

# Read by MLflow 3.17.2 when it is imported or first used; a user's own setting wins.
_DEFAULTS = {
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "4",
    # Curves are written by one thread: ten would only wait for SQLite's lock.
    "MLFLOW_ASYNC_LOGGING_THREADPOOL_SIZE": "1",
}


def tracking_uri() -> str:
    """`MLFLOW_TRACKING_URI` with an absolute path, else `mlflow.db` in `DRAFTPROOF_HOME`.

    A user and password in a server's address move to the variables that MLflow has for them: it writes the address into
    its errors, and those end in logs.
    """
    given = os.environ.get("MLFLOW_TRACKING_URI")
    if not given:
        return f"{_SQLITE}{home() / 'mlflow.db'}"
    if given.startswith(_SQLITE):
        return f"{_SQLITE}{Path(given.removeprefix(_SQLITE)).expanduser().resolve()}"
    if "://" not in given or given.startswith("file:"):
        raise BadInput(
            "MLFLOW_TRACKING_URI",
            found=f"a store of files, {given}",
            expected="sqlite:///<file>, a database, or the address of an MLflow server",
            do="MLflow 3.17 refuses stores of files: unset it to use DRAFTPROOF_HOME, or name a database.",
        )
    return _without_password(given) if given.startswith("http") else given


def _without_password(given: str) -> str:
    address = taken_apart(given)
    if address.user is not None:
        os.environ["MLFLOW_TRACKING_URI"] = address.url
        os.environ["MLFLOW_TRACKING_USERNAME"], os.environ["MLFLOW_TRACKING_PASSWORD"] = address.user, address.password or ""
    return address.url


def artifact_root(uri: str) -> Path | None:
    """Where artifacts lie; None where the MLflow server decides."""
    if uri.startswith("http"):
        return None
    return (Path(uri.removeprefix(_SQLITE)).parent if uri.startswith(_SQLITE) else home()) / "mlflow-artifacts"


def connect() -> MlflowClient:
    """A client of the store, which is initialised. Raises BadInput and MachineTrouble."""
    uri = tracking_uri()
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient

    logging.getLogger("alembic").setLevel(logging.WARNING)
    home().mkdir(parents=True, exist_ok=True)
    # Six processes that open a fresh SQLite file at once all fail (MLflow 3.17.2, measured): one at a time.
    with locked(home() / "mlflow.lock"), usable(uri):
        if uri.startswith(_SQLITE):
            Path(uri.removeprefix(_SQLITE)).parent.mkdir(parents=True, exist_ok=True)
        try:
            client = MlflowClient(tracking_uri=uri, registry_uri=uri)
            client.search_experiments(max_results=1)
        except ModuleNotFoundError as error:
            raise BadInput(
                "MLFLOW_TRACKING_URI", found=f"{uri}, and no module {error.name}", expected="its driver", do="Install draftproof[postgres]."
            ) from error
    return client


@contextmanager
def usable(uri: str) -> Iterator[None]:
    """What goes wrong inside is the store's trouble, in one line."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (MlflowException, SQLAlchemyError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise MachineTrouble(f"MLflow store {uri}: {reason}. Is it reachable, writable, and not held by another process?") from error


def pages(search: Callable[..., Any], **arguments: object) -> Iterator[Any]:
    """Everything that a paged search of MLflow's client finds: it stops at 1,000 unless it is asked for the next page."""
    token = None
    while True:
        page = search(**arguments, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def page_of(run_id: str) -> str | None:
    """Address of a run's page; None where no MLflow server shows it. Raises MachineTrouble."""
    uri = tracking_uri()
    if not uri.startswith("http"):
        return None
    client = connect()
    with usable(uri):
        experiment = client.get_run(run_id).info.experiment_id
    return f"{uri.rstrip('/')}/#/experiments/{experiment}/runs/{run_id}"
