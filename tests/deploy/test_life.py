"""A server's life, with a small process in SGLang's place: ready, kept, orphaned, dead, hanging, somebody else's."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest

from tasks.config import DeployConfig
from tasks.deploy import start_server
from tasks.deploy.kept import kept_servers, stop_kept
from tasks.deploy.ports import free_port, is_free
from tasks.deploy.records import records
from tasks.deploy.server import Server
from tasks.report import Silent
from tasks.verdict import BadInput, MachineTrouble, Outcome, ProofFailed
from tests.deploy.fake import interpreter
from tests.processes import processes_of

ROOT = Path(__file__).resolve().parents[2]
Start = Callable[..., Server]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Start a plain server on a folder that has a config, with the interpreter of a mode."""
    target = tmp_path / "target"
    target.mkdir()
    (target / "config.json").write_text(json.dumps({"max_position_embeddings": 4096}))

    def begin(mode: str = "serve", *, keep: bool = False, lies: dict[str, object] | None = None, **config: object) -> Server:
        python = interpreter(tmp_path, mode, **(lies or {}))
        settings = DeployConfig.model_validate({"device": "cpu", "python": python, "start_seconds": 20, **config})
        return start_server(
            settings, target=target, drafter=None, steps=None, log=tmp_path / "logs" / "server.log", report=Silent(), keep=keep
        )

    return begin


@pytest.fixture(autouse=True)
def nothing_left(own_home: Path) -> Iterator[None]:
    """No test leaves a process behind."""
    yield
    assert processes_of(own_home) == []


def test_a_server_is_ready_when_it_has_generated_and_gone_when_it_is_left(start: Start) -> None:
    with start() as server:
        assert server.url.startswith("http://127.0.0.1:")
        assert [c.verdict for c in server.contract] == [Outcome.PASS] * 3, server.contract
        generation = server.generate([1, 2, 3], 5)
        assert (generation.tokens, generation.prompt_tokens, generation.verify_rounds) == ([5] * 5, 3, 0)
        assert generation.seconds > 0
        server.flush_cache()
        server.check_alive()
        assert len(server.processes) == 3 and all(p.alive for p in server.processes)
        assert records()[0].processes == server.processes
        scratch = records()[0].scratch
        assert scratch.is_dir()
    assert not any(p.alive for p in server.processes)
    assert records() == [] and not scratch.exists()
    assert is_free("127.0.0.1", server.launch.flags["port"])


def test_two_servers_start_at_the_same_time(start: Start) -> None:
    servers: list[Server] = []
    threads = [threading.Thread(target=lambda: servers.append(start())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with servers[0], servers[1]:
        assert servers[0].url != servers[1].url and len(records()) == 2
        servers[0].stop()
        servers[1].check_alive()


def test_a_setting_that_the_server_changed_fails_the_contract(start: Start) -> None:
    with start(lies={"max_running_requests": 48, "disable_overlap_schedule": False}) as server:
        failed = {c.numbers["flag"]: c for c in server.contract if c.verdict is Outcome.FAIL}
        assert set(failed) == {"max_running_requests", "disable_overlap_schedule"}
        assert failed["max_running_requests"].kind == "launch-flags"
        assert "asked 4" in failed["max_running_requests"].message and "48" in failed["max_running_requests"].message


def test_a_start_that_dies_shows_the_end_of_its_log(start: Start) -> None:
    with pytest.raises(MachineTrouble, match=r"status 7(.|\n)*made of cheese"):
        start("die")
    assert records() == []


def test_a_start_that_hangs_is_given_up(start: Start) -> None:
    with pytest.raises(MachineTrouble, match=r"did not generate within 2 s \(deploy.start_seconds\)"):
        start("hang", start_seconds=2)
    assert records() == []


def test_a_server_whose_garbage_collector_is_not_frozen_is_trouble(start: Start) -> None:
    with pytest.raises(MachineTrouble, match="freezing its garbage collector failed: HTTPStatusError"):
        start("unfrozen")
    assert records() == []


def test_a_request_that_hangs_is_trouble(start: Start) -> None:
    with start("stuck", request_seconds=1) as server, pytest.raises(MachineTrouble, match="a generation failed: ReadTimeout"):
        server.generate([1], 20)


def test_a_cache_that_was_not_flushed_is_trouble(start: Start) -> None:
    with start("busy") as server, pytest.raises(MachineTrouble, match="was not flushed: status 400"):
        server.flush_cache()


@pytest.mark.parametrize("which", [0, 1])
def test_a_killed_process_is_noticed(start: Start, which: int) -> None:
    with start() as server:
        os.kill(server.processes[which].pid, signal.SIGKILL)
        _wait(lambda: not server.processes[which].alive)
        with pytest.raises(MachineTrouble, match="ended with status 137" if which == 0 else "are gone"):
            server.check_alive()


def test_a_taken_port_is_named(start: Start) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(MachineTrouble, match=f"port {port} of 127.0.0.1 is taken"):
            start(port=port)


def test_somebody_else_who_answers_200_is_not_taken_for_our_server(start: Start, tmp_path: Path) -> None:
    port = free_port("127.0.0.1")
    impostor = _Impostor(port)
    # The port is free at the check, and taken while our server starts ("hang" never binds it).
    threading.Timer(0.7, impostor.serve).start()
    try:
        with pytest.raises(MachineTrouble, match=f"port {port} of 127.0.0.1 is taken"):
            start("hang", port=port)
    finally:
        impostor.close()


def test_an_unknown_interpreter_is_bad_input(start: Start) -> None:
    with pytest.raises(BadInput, match=r"deploy\.python: found no executable /nowhere/python"):
        start(python="/nowhere/python")


def test_what_sglang_would_change_is_refused_before_anything_starts(start: Start, tmp_path: Path) -> None:
    with pytest.raises(ProofFailed) as caught:
        start(context_length=8192, max_total_tokens=8192)
    assert caught.value.verdict.kind == "context-length" and "4096" in caught.value.verdict.message
    assert not (tmp_path / "logs").exists()


def test_a_kept_server_stays_until_it_is_stopped(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    with start(keep=True) as server:
        assert kept_servers() == []  # not before it is proved
    assert all(p.alive for p in server.processes)
    assert [r.url for r in kept_servers()] == [server.url]
    with pytest.raises(BadInput, match="no-such-server"):
        stop_kept("no-such-server")
    assert [r.url for r in stop_kept(server.url)] == [server.url]
    assert not any(p.alive for p in server.processes) and kept_servers() == [] and records() == []
    server.stop()


def test_a_kept_server_that_is_not_proved_goes(start: Start) -> None:
    with pytest.raises(ValueError, match="not proved"), start(keep=True) as server:
        raise ValueError("not proved")
    assert not any(p.alive for p in server.processes) and records() == []


OWNER = """
import json, os, signal, sys, time
from pathlib import Path
from tasks.config import DeployConfig
from tasks.deploy import start_server
from tasks.report import Silent
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by what a shell starts in its background
folder = Path(sys.argv[1])
config = DeployConfig.model_validate({"device": "cpu", "python": sys.argv[2]})
keep = sys.argv[3] == "keep"
with start_server(config, target=folder / "target", drafter=None, steps=None, log=folder / "log", report=Silent(), keep=keep) as server:
    print(json.dumps([p.pid for p in server.processes]), flush=True)
    if not keep:
        time.sleep(600)
print("left", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_when_the_owner_is_ended(start: Start, tmp_path: Path, number: signal.Signals) -> None:
    owner, pids = _owner(tmp_path, "no")
    supervisor = records()[0].supervisor
    owner.send_signal(number)
    owner.communicate()
    _wait(lambda: not any(_lives(pid) for pid in [*pids, supervisor.pid]))


def test_a_kept_server_outlives_its_owner_and_the_next_start(start: Start, tmp_path: Path) -> None:
    owner, pids = _owner(tmp_path, "keep")
    assert owner.stdout is not None and owner.stdout.readline() == "left\n"
    owner.kill()
    owner.communicate()
    with start():
        time.sleep(0.6)
        assert all(_lives(pid) for pid in pids)
    assert len(stop_kept()) == 1
    assert not any(_lives(pid) for pid in pids)


def test_an_orphan_is_ended_at_the_next_start(start: Start, tmp_path: Path) -> None:
    owner, pids = _owner(tmp_path, "no")
    orphan = records()[0]
    orphan.supervisor.signal(signal.SIGSTOP)  # so that it does not do its work
    owner.kill()
    owner.communicate()
    time.sleep(0.6)
    assert all(_lives(pid) for pid in pids)
    orphan.supervisor.signal(signal.SIGCONT)
    with start():
        assert not any(_lives(pid) for pid in [*pids, orphan.supervisor.pid])
        assert orphan.id not in {r.id for r in records()}


def test_a_killed_supervisor_takes_the_server_along_and_the_rest_is_found(start: Start) -> None:
    with start() as server:
        records()[0].supervisor.signal(signal.SIGKILL)
        _wait(lambda: not _lives(server.pid))
    assert not any(p.alive for p in server.processes)


def test_a_recycled_process_id_is_nobody_of_ours(start: Start, tmp_path: Path) -> None:
    with start() as server:
        record = records()[0]
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        recycled = [p.model_copy(update={"pid": stranger.pid}) for p in server.processes]
        dead = record.owner.model_copy(update={"start": 1})
        record.model_copy(update={"processes": recycled, "owner": dead, "supervisor": recycled[0]}).save()
        with start():
            assert stranger.poll() is None
            assert record.id not in {r.id for r in records()}
    finally:
        stranger.kill()
        stranger.wait()


class _Impostor:
    def __init__(self, port: int) -> None:
        self._port = port
        self._server: ThreadingHTTPServer | None = None

    def serve(self) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *args: object) -> None:
                return None

        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        self._server.serve_forever()

    def close(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()


def _owner(folder: Path, keep: str) -> tuple[subprocess.Popen[str], list[int]]:
    python = interpreter(folder)
    command = [sys.executable, "-c", OWNER, str(folder), python, keep]
    owner = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    return owner, json.loads(owner.stdout.readline())


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _wait(condition: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
