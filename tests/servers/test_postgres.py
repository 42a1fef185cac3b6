"""`make up` with MLflow's tables in PostgreSQL: Debian's own, started for the test, and nothing else changed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from mlflow import MlflowClient

from tasks.deploy.ports import free_port
from tests.processes import processes_of

pytestmark = pytest.mark.servers

PROJECT = Path(__file__).resolve().parents[2]
PASSWORD = "canary-of-postgres"


def binaries() -> Path | None:
    """Debian keeps them out of PATH, by version."""
    found = [*sorted(Path("/usr/lib/postgresql").glob("*/bin")), *map(Path, os.environ["PATH"].split(os.pathsep))]
    return next((folder for folder in found if (folder / "initdb").exists() and (folder / "postgres").exists()), None)


BINARIES = binaries()
if BINARIES is None:
    pytest.skip("no PostgreSQL here: apt-get install postgresql", allow_module_level=True)


@dataclass
class Database:
    """A running PostgreSQL with one user, who owns one database."""

    port: int

    @property
    def uri(self) -> str:
        return f"postgresql://draftproof:{PASSWORD}@127.0.0.1:{self.port}/mlflow"

    def ask(self, query: str) -> str:
        command = [
            f"{BINARIES}/psql",
            "--host=127.0.0.1",
            f"--port={self.port}",
            "--username=draftproof",
            "--tuples-only",
            "--no-align",
            "mlflow",
            "-c",
        ]
        done = subprocess.run([*command, query], env={**os.environ, "PGPASSWORD": PASSWORD}, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


@pytest.fixture(scope="module")
def database() -> Iterator[Database]:
    """PostgreSQL refuses to run as root: then it is Debian's user `postgres` who runs it, in a folder of its own."""
    root = os.geteuid() == 0
    folder, port = Path(tempfile.mkdtemp(prefix="draftproof-postgres-")), free_port("127.0.0.1")
    (folder / "password").write_text(PASSWORD)
    if root:
        shutil.chown(folder, "postgres", "postgres")
        shutil.chown(folder / "password", "postgres", "postgres")
    data, log = folder / "data", folder / "log"

    def command(*words: str) -> list[str]:
        return [*(["runuser", "-u", "postgres", "--"] if root else []), *words]

    settings = ["--username=draftproof", "--auth=scram-sha-256", f"--pwfile={folder / 'password'}", "--no-sync"]
    made = subprocess.run(
        command(str(BINARIES / "initdb"), f"--pgdata={data}", *settings), cwd=folder, capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stdout + made.stderr
    with log.open("wb") as output:
        server = subprocess.Popen(
            command(str(BINARIES / "postgres"), "-D", str(data), "-h", "127.0.0.1", "-p", str(port), "-k", str(folder), "-F"),
            cwd=folder,
            stdout=output,
            stderr=output,
        )
    try:
        deadline = time.monotonic() + 60
        while subprocess.run([str(BINARIES / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)], check=False).returncode:
            assert server.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        account = ["--host=127.0.0.1", f"--port={port}", "--username=draftproof"]
        subprocess.run([str(BINARIES / "createdb"), *account, "mlflow"], env={**os.environ, "PGPASSWORD": PASSWORD}, check=True)
        yield Database(port)
    finally:
        server.terminate()
        server.wait(60)
        shutil.rmtree(folder, ignore_errors=True)


def test_the_ledger_of_make_up_lies_in_postgresql(database: Database, tmp_path: Path) -> None:
    home = tmp_path / "home"
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "MLFLOW_"))}
    environment = {**inherited, "DRAFTPROOF_HOME": str(home), "PREFECT_HOME": str(tmp_path / "user"), "MLFLOW_TRACKING_URI": database.uri}
    mlflow_port = free_port("127.0.0.1")

    def services(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "infra/services.py", *words]
        return subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=400, check=False)

    started = services("up", "--prefect-port", str(free_port("127.0.0.1")), "--mlflow-port", str(mlflow_port))
    try:
        assert started.returncode == 0, started.stdout + started.stderr
        told_on = [process.cmdline() for process in psutil.process_iter(["cmdline"]) if PASSWORD in " ".join(process.info["cmdline"] or [])]
        assert told_on == [], "no command line has the password"
        for name in ("worker", "prefect"):
            assert PASSWORD not in environment_of(home, name), f"{name} has no use for it"
        client = written(f"http://127.0.0.1:{mlflow_port}", home)
    finally:
        ended = services("down")
    assert ended.returncode == 0 and processes_of(home) == []
    assert not (home / "mlflow.db").exists()
    assert database.ask("select name from experiments where name like 'draftproof/%'") == "draftproof/tiny"
    assert database.ask("select value from metrics where key = 'bench.speedup'") == "1.25"
    assert client and [path.name for path in (home / "mlflow-artifacts").rglob("note.txt")] == ["note.txt"]
    said = [path for path in home.rglob("*.log") if PASSWORD in path.read_text(errors="replace")]
    assert said == [] and PASSWORD not in started.stdout + started.stderr + ended.stdout


def environment_of(home: Path, name: str) -> str:
    import json

    record = json.loads((home / "services" / f"{name}.json").read_text())
    return " ".join(psutil.Process(record["process"]["pid"]).environ().values())


def written(mlflow: str, home: Path) -> MlflowClient:
    """A run in the ledger, as a pipeline writes it, through the server; and read back."""
    script = (
        "from tasks.ledger import open_ledger\n"
        "with open_ledger('tiny').run('a run') as run:\n"
        "    run.log({'bench.speedup': 1.25})\n"
        "    with run.child('train') as child:\n"
        "        child.metrics({'loss': 0.5}, 1)\n"
        "    run.text('note.txt', 'kept')\n"
    )
    given = {**os.environ, "MLFLOW_TRACKING_URI": mlflow, "DRAFTPROOF_HOME": str(home)}
    subprocess.run([sys.executable, "-c", script], cwd=PROJECT, env=given, check=True, timeout=200)
    client = MlflowClient(mlflow)
    experiment = client.get_experiment_by_name("draftproof/tiny")
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert {name: run.info.status for name, run in runs.items()} == {"a run": "FINISHED", "train": "FINISHED"}
    return client
