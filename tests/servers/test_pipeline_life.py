"""The whole pipeline is hit in each stage, in each way: nothing is left running, the ledger is closed, and the next run goes on.

The tests are one story in one home, told in the order of the file: what one leaves behind, the next has to cope with, and
the last finishes.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from flows.prefect_api import prefect_api
from tasks.deploy.ports import free_port
from tasks.deploy.records import ServerRecord
from tasks.ledger.owner import PROCESS
from tasks.processes import Process
from tasks.store import sha256_file
from tests.processes import processes_of
from tests.servers.running import KEPT, PROJECT, Flow, Place, gone

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DRAFTPROOF_HOME", str(tmp_path_factory.mktemp("prefect")))
        patch.delenv("PREFECT_API_URL", raising=False)
        patch.setenv("PREFECT_HOME", str(tmp_path_factory.mktemp("user")))
        with prefect_api() as api:
            made = Place.made(tmp_path_factory.mktemp("life"), api.url)
            api.wait()
            yield made


@pytest.fixture(autouse=True)
def nothing_runs_on(place: Place) -> Iterator[None]:
    """A test that fails ends its run, so that the next one begins as it would have."""
    yield
    for process in place.processes:
        process.kill()
        process.wait()


def assert_whole(place: Place) -> None:
    """What stands in the cache as a product has every byte that was noted when it was made."""
    for product in (place.home / "cache").glob("*/*/product.json"):
        if product.parent.suffix == ".partial":
            continue
        files = json.loads(product.read_text())["files"]
        assert all([(path := product.parent / name).stat().st_size, sha256_file(path)] == noted for name, noted in files.items())
    folders = {path for path in (place.home / "cache").glob("*/*") if path.is_dir() and path.suffix != ".partial"}
    assert all((folder / "product.json").is_file() for folder in folders)


def went_on(flow: Flow, before: set[str]) -> None:
    """What an earlier run had finished was found again, as far as this run came."""
    begun = {stage for stage in KEPT if f"{stage:<11} begins" in flow.told}
    assert flow.found >= before & begun, flow.told[-3000:]


def test_kill_9_in_each_stage_before_the_servers(place: Place) -> None:
    for number, stage in enumerate(["target", "data", "capture", "train", "export", "verify"]):
        before, flow = set(place.finished), Flow(place)
        flow.until_at_work(stage)
        assert flow.hit(signal.SIGKILL) == -signal.SIGKILL
        assert f"{stage:<11} done" not in flow.told, f"{stage} was too quick to be hit"
        went_on(flow, before)
        assert ("Training goes on from step" in flow.told) == (stage == "export"), "from the state that the killed one had saved"
        assert_whole(place)
        newest, *earlier = place.runs()
        assert newest[0].data.tags["draftproof.stage"] == stage and newest[0].info.status == "RUNNING", "nobody could close it"
        assert len(earlier) == number
        assert {run.info.status for each in earlier for run in each} <= {"KILLED", "FINISHED"}
        assert all(each[0].info.status == "KILLED" for each in earlier)


@pytest.mark.parametrize("stage", ["deploy", "benchmark"])
def test_kill_9_while_servers_run(stage: str, place: Place) -> None:
    before, flow = set(place.finished), Flow(place)
    flow.until_at_work(stage)
    servers = place.servers()
    assert len(servers) == (1 if stage == "deploy" else 2) and all(server.alive for server in servers)
    assert flow.hit(signal.SIGKILL) == -signal.SIGKILL
    gone(place, every_process(servers))
    went_on(flow, before)
    if stage == "benchmark":
        assert "Training goes on" not in flow.told and flow.found == set(KEPT)


def every_process(servers: list[ServerRecord]) -> list[Process]:
    return [process for server in servers for process in (server.supervisor, *server.processes)]


def test_a_scheduler_then_a_server_die_in_the_benchmark(place: Place) -> None:
    """The machine's trouble: tried once more, from the start of the stage, and then told."""
    out = place.folder / "out.json"
    flow = Flow(place, "--json", str(out))
    flow.until_at_work("benchmark")
    first = place.servers()
    speculative = next(server for server in first if server.drafter)
    next(p for p in speculative.processes if "scheduler" in psutil.Process(p.pid).name()).signal(signal.SIGKILL)
    flow.until_told("plain steps", times=2)
    assert not any(server.alive for server in first)
    second = place.servers()
    assert len(second) == 2 and not {server.id for server in second} & {server.id for server in first}
    next(server for server in second if not server.drafter).processes[0].signal(signal.SIGKILL)
    assert flow.ended() == 3, flow.told[-3000:]
    gone(place, every_process(second))
    report = json.loads(out.read_text())
    assert (report["verdict"], report["kind"], report["stage"]) == ("ERROR", "machine-trouble", "benchmark")
    assert "server" in report["message"]
    parent, *stages = place.runs()[0]
    assert parent.info.status == "FAILED" and parent.data.tags["draftproof.kind"] == "machine-trouble"
    assert {run.info.status for run in stages if run.info.run_name == "benchmark"} == {"FAILED"}
    assert place.servers() == []


def test_ctrl_c_in_the_benchmark(place: Place) -> None:
    flow = Flow(place)
    flow.until_at_work("benchmark")
    assert flow.hit(signal.SIGINT) == 128 + signal.SIGINT, flow.told[-3000:]
    assert "Traceback" not in flow.told
    parent, *stages = place.runs()[0]
    assert parent.info.status == "KILLED", "closed by the run itself"
    assert {run.info.run_name: run.info.status for run in stages}["benchmark"] == "KILLED"
    assert place.servers() == [] and list(place.scratch.glob("draftproof-*")) == []


def test_cancelled_in_prefect_while_a_server_runs(place: Place, services: dict[str, str]) -> None:
    prefect = str(Path(sys.executable).with_name("prefect"))

    def ask(*words: str) -> str:
        done = subprocess.run([prefect, *words], cwd=place.folder, env=services, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    parameters = json.dumps({"config_file": str(place.config)})
    started = ask("deployment", "run", "train-verify-deploy/demo", "-p", f"parameters={parameters}")
    found = re.search(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", started)
    assert found, started
    log = place.home / "services" / "worker.log"
    wait_for(lambda: "server ready at" in log.read_text(), log)
    servers, (parent, *_) = place.servers(), place.runs()[0]
    assert parent.data.tags["draftproof.flow_run_id"] == found[0]
    owner = Process.model_validate_json(parent.data.tags[PROCESS])
    assert owner.alive and len(servers) == 1
    ask("flow-run", "cancel", found[0])
    wait_for(lambda: not any(process.alive for process in [owner, *every_process(servers)]), log)
    wait_for(lambda: "CANCELLED" in ask("flow-run", "inspect", found[0]), log)
    parent, *stages = place.runs()[0]
    assert parent.info.status == "KILLED" and {run.info.run_name: run.info.status for run in stages}["deploy"] == "KILLED"
    assert place.servers() == []


@pytest.fixture
def services(place: Place) -> Iterator[dict[str, str]]:
    """`make up` in the home of the story; what `prefect` is to be called with."""
    environment = {**place.environment, "PREFECT_HOME": str(place.folder / "user")}

    def call(*words: str) -> None:
        command = [sys.executable, "infra/services.py", *words]
        done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=400, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    try:
        call("up", "--prefect-port", str(free_port("127.0.0.1")), "--mlflow-port", str(free_port("127.0.0.1")))
        yield environment
    finally:
        call("down")
    assert processes_of(place.home) == []


def wait_for(there: Callable[[], bool], log: Path, seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < deadline, log.read_text()[-4000:]
        time.sleep(0.2)


def test_kill_9_in_the_promotion(place: Place) -> None:
    flow = Flow(place)
    flow.until_at_work("promote")
    assert flow.hit(signal.SIGKILL) == -signal.SIGKILL
    assert f"{'promote':<11} done" not in flow.told
    from mlflow.exceptions import MlflowException

    with pytest.raises(MlflowException):
        place.ledger().get_model_version_by_alias("tiny-grammar-eagle3", "champion")


def test_the_last_run_finishes_and_nothing_is_left_of_the_others(place: Place) -> None:
    before, out = set(place.finished), place.folder / "out.json"
    flow = Flow(place, "--json", str(out))
    status = flow.ended(400)
    report = json.loads(out.read_text())
    assert status == 0, report
    assert report["verdict"] in ("PASS", "WARN") and report["metrics"]["bench.accept_length"] > 1
    assert before == set(KEPT)
    went_on(flow, before)
    assert_whole(place)
    (parent, *stages), *earlier = place.runs()
    assert {run.info.status for run in (parent, *stages)} == {"FINISHED"}
    assert {each[0].info.status for each in earlier} == {"KILLED", "FAILED"}
    assert "RUNNING" not in {run.info.status for each in earlier for run in each}
    assert place.ledger().get_model_version_by_alias("tiny-grammar-eagle3", "champion").run_id == parent.info.run_id
    assert list((place.home / "cache").glob("*/*.partial")) == []
    assert place.servers() == [] and processes_of(place.home) == []
    assert list(place.scratch.glob("draftproof-*")) == []
