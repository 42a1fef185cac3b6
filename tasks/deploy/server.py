"""A server's life: started, shown to be ours and to generate, compared with what was asked, used, ended."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from tasks.config import DeployConfig
from tasks.deploy import supervisor
from tasks.deploy.client import Client, Impostor
from tasks.deploy.contract import compare
from tasks.deploy.generation import Generation
from tasks.deploy.key import key_in
from tasks.deploy.launch import Launch, plan
from tasks.deploy.ports import free_port, is_free
from tasks.deploy.questions import Questions
from tasks.deploy.records import ServerRecord, end_orphans
from tasks.deploy.refusals import refusals
from tasks.processes import END_SECONDS, Process, family
from tasks.report import Report
from tasks.verdict import BadInput, Check, MachineTrouble, Outcome, ProofFailed, Verdict
from tasks.wiring.kinds import Kind

_POLL_SECONDS = 0.2
_PORT_TRIES = 3
_LOG_TAIL_LINES = 30
_READY_TOKENS = 8
# SGLang looks for SIGTERM every five seconds and then gives its scheduler time to release a GPU's memory
# (sglang 0.5.23, srt/managers/tokenizer_manager.py:3508); a CPU's memory goes with the process.
_GRACE_SECONDS = {"cpu": 0.0, "cuda": 20.0}


class _PortTaken(Exception):
    """Somebody else took the port while the server was starting."""


class Server(Questions):
    """A running SGLang server and everything that belongs to it.

    Leaving its `with` block ends it; a kept server is ended there only by an exception, and released otherwise.
    The calls may be used by several threads; so may `Server.start`, to have two servers starting at once.
    """

    def __init__(self, launch: Launch, config: DeployConfig, log: Path, *, keep: bool) -> None:
        self.launch = launch
        self.log = log
        self.contract: list[Check] = []
        self.seconds_to_ready = 0.0
        self._config = config
        self._keep = keep
        key = None if launch.api_key_env is None else key_in(launch.api_key_env)
        self._client = Client(launch.url, launch.identity, config.request_seconds, key)
        self._supervisor: subprocess.Popen[str] | None = None
        self._record: ServerRecord | None = None

    @classmethod
    def start(
        cls,
        config: DeployConfig,
        *,
        target: Path,
        drafter: Path | None,
        steps: int | None,
        log: Path,
        report: Report,
        keep: bool = False,
        probes: Path | None = None,
    ) -> Self:
        """See `tasks.deploy.start_server`."""
        end_orphans(report)
        _check_interpreter(config)
        for attempt in range(1, _PORT_TRIES + 1):
            port = config.port or free_port(config.host)
            launch = plan(config, target=target, drafter=drafter, steps=steps, port=port, probes=probes)
            _refuse(launch)
            if not is_free(config.host, port):
                raise _taken(config.host, port)
            server = cls(launch, config, log, keep=keep)
            try:
                server._launch(target, drafter, steps)
                report.say(f"starting {server.kind} server, process {server.pid}, log {log}")
                server._await_ready()
                server._prove()
                report.say(f"{server.kind} server ready at {server.url} after {server.seconds_to_ready:.0f} s")
                return server
            except _PortTaken as error:
                server.stop()
                if config.port is not None or attempt == _PORT_TRIES:
                    raise _taken(config.host, port) from error
                report.say(f"port {port} was taken meanwhile ({error}); trying another one")
            except BaseException:
                server.stop()
                raise
        raise AssertionError("unreachable: the last attempt returns or raises")

    # What it is

    @property
    def url(self) -> str:
        return self.launch.url

    @property
    def pid(self) -> int:
        """Process id of SGLang's main process."""
        assert self._record is not None
        return self._record.processes[0].pid

    @property
    def processes(self) -> list[Process]:
        """The server's processes as they were when it was ready: main, scheduler, detokenizer."""
        return [] if self._record is None else self._record.processes

    @property
    def kind(self) -> str:
        return f"speculative ({self.launch.flags['speculative_num_steps']} steps)" if self.launch.speculative else "plain"

    # What it is asked

    def probe(self, input_ids: Sequence[int], max_new_tokens: int, name: str) -> Generation:
        """As `generate`, recorded under `name` by a server that was started with `probes`. Raises MachineTrouble."""
        with self._trouble("a probe"):
            return self._client.generate(input_ids, max_new_tokens, ignore_eos=True, request_id=name)

    def check_alive(self) -> None:
        """Raises MachineTrouble, with the log's tail, when one of the server's processes has ended."""
        assert self._supervisor is not None and self._record is not None
        main, *others = self._record.processes
        if not main.alive:
            status = self._supervisor.wait(END_SECONDS)  # it ends the others first
            raise MachineTrouble(f"the {self.kind} server ended with status {status}\n{self._tail()}")
        gone = [p.pid for p in others if not p.alive]
        if gone:
            raise MachineTrouble(f"processes {gone} of the {self.kind} server are gone\n{self._tail()}")

    # How it ends

    def release(self) -> None:
        """Let a kept server stay when this process goes."""
        assert self._record is not None
        self._record = self._record.model_copy(update={"kept": True})
        self._record.save()
        self._record.supervisor.signal(signal.SIGUSR1)
        self._client.close()

    def stop(self) -> None:
        """End the server with all its processes; returns when they are gone. May be called again."""
        self._client.close()
        if self._record is not None:
            self._record.end()
        elif self._supervisor is not None:
            self._supervisor.terminate()
        if self._supervisor is not None:
            self._supervisor.wait(END_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self._keep and kind is None:
            self.release()
        else:
            self.stop()

    # How it starts

    def _launch(self, target: Path, drafter: Path | None, steps: int | None) -> None:
        scratch = Path(tempfile.mkdtemp(prefix="draftproof-"))
        self.log.parent.mkdir(parents=True, exist_ok=True)
        owner = Process.of(os.getpid())
        assert owner is not None
        grace = _GRACE_SECONDS[self.launch.flags["device"]]
        own = {
            # Sockets and temporary files that SGLang leaves lying about go with the folder.
            "TMPDIR": str(scratch),
            # Its processes find each other by a file: torch's store would listen to every machine (sglang 0.5.23,
            # srt/distributed/bootstrap.py:236-250). What SGLang's own kernels name their shared memory by stays one server's.
            "SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE": f"file://{scratch}/rendezvous",
            "MASTER_ADDR": self.launch.flags["host"],
            "MASTER_PORT": str(self.launch.flags["port"]),
        }
        with self.log.open("ab") as log:
            self._supervisor = subprocess.Popen(
                [sys.executable, "-I", "-S", supervisor.__file__, str(owner.pid), str(owner.start), str(grace), *self.launch.command()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
                cwd=scratch,
                env=self.launch.full_environment() | own,
            )
        watching, main = Process.of(self._supervisor.pid), self._started()
        if watching is None or main is None:
            self._supervisor.wait()
            shutil.rmtree(scratch, ignore_errors=True)
            raise MachineTrouble(f"the server ended at once\n{self._tail()}")
        self._record = ServerRecord(
            id=self.launch.identity,
            url=self.url,
            port=self.launch.flags["port"],
            log=self.log,
            scratch=scratch,
            target=target,
            drafter=drafter,
            steps=steps,
            launch=self.launch.digest(),
            owner=owner,
            supervisor=watching,
            processes=[main],
        )
        self._record.save()

    def _started(self) -> Process | None:
        """The server's main process, as the supervisor announces it."""
        assert self._supervisor is not None and self._supervisor.stdout is not None
        with self._supervisor.stdout as announcement:
            line = announcement.readline().strip()
        return Process.of(int(line)) if line else None

    def _await_ready(self) -> None:
        """Wait until our server has really generated. The health route answers before that works."""
        begun = time.monotonic()
        deadline = begun + self._config.start_seconds
        while True:
            try:
                if self._client.is_up():
                    self._first = self._client.generate(
                        self._ready_prompt(), _READY_TOKENS, ignore_eos=True, seconds=deadline - time.monotonic()
                    )
                    break
            except Impostor as error:
                raise _PortTaken(str(error)) from error
            except httpx.HTTPError:
                pass  # dead, or too slow: found out below
            self._still_starting(deadline)
            time.sleep(_POLL_SECONDS)
        self.seconds_to_ready = time.monotonic() - begun
        assert self._record is not None
        self._record = self._record.model_copy(update={"processes": family(self.pid)})
        self._record.save()
        with self._trouble("freezing its garbage collector"):
            self._client.freeze_gc()

    def _still_starting(self, deadline: float) -> None:
        """Raises _PortTaken or MachineTrouble when the start has failed."""
        try:
            self.check_alive()
        except MachineTrouble as error:
            host, port = self.launch.flags["host"], self.launch.flags["port"]
            if not is_free(host, port):
                raise _PortTaken("the server could not bind it") from error
            raise
        if time.monotonic() > deadline:
            seconds = self._config.start_seconds
            raise MachineTrouble(f"the {self.kind} server did not generate within {seconds} s (deploy.start_seconds)\n{self._tail()}")

    def _prove(self) -> None:
        """What was asked is what runs, and it speculates if and only if it was asked to."""
        self.contract = [*compare(self.launch, self.info()), _speculates(self.launch, self._first)]
        if self.launch.api_key_env is not None:
            with self._trouble("a request without a key"):
                self.contract.append(_asks_for_its_key(self._client.status_for_a_stranger()))

    def _ready_prompt(self) -> list[int]:
        return [1, 2, 3, 4]  # any ids are in every vocabulary; what comes back is not looked at

    # When it fails

    @contextlib.contextmanager
    def _trouble(self, what: str) -> Iterator[None]:
        """Turn a request that failed into MachineTrouble with the reason: a dead server, a hanging one, an impostor."""
        try:
            yield
        except (httpx.HTTPError, Impostor) as error:
            self.check_alive()
            raise MachineTrouble(f"{self.url}: {what} failed: {type(error).__name__}: {error}\n{self._tail()}") from error

    def _tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:]
        return "\n".join([f"the end of {self.log}:", *lines])


def _speculates(launch: Launch, generation: Generation) -> Check:
    rounds = generation.verify_rounds
    good = (rounds > 0) == launch.speculative
    return Check(
        name="speculates as asked",
        verdict=Outcome.PASS if good else Outcome.FAIL,
        kind=None if good else Kind.LAUNCH_FLAGS,
        message=f"{rounds} verify rounds in {len(generation.tokens)} tokens; asked for speculation: {launch.speculative}",
        numbers={"verify_rounds": rounds, "tokens": len(generation.tokens)},
    )


def _asks_for_its_key(status: int) -> Check:
    good = status == httpx.codes.UNAUTHORIZED
    return Check(
        name="API key",
        verdict=Outcome.PASS if good else Outcome.FAIL,
        kind=None if good else Kind.LAUNCH_FLAGS,
        message=f"a request without the API key is answered with status {status}"
        + ("" if good else ", expected 401: this SGLang does not take its key as 0.5.23 does (tasks/deploy/keyed.py)"),
        numbers={"status": status},
    )


def _refuse(launch: Launch) -> None:
    checks = refusals(launch.flags)
    if any(check.verdict is Outcome.FAIL for check in checks):
        raise ProofFailed(Verdict.of("deploy", checks, passed=""))


def _check_interpreter(config: DeployConfig) -> None:
    if config.python is not None and not os.access(config.python, os.X_OK):
        raise BadInput(
            "deploy.python", found=f"no executable {config.python}", expected="a Python interpreter", do="Name the serving environment's."
        )


def _taken(host: str, port: int) -> MachineTrouble:
    return MachineTrouble(f"port {port} of {host} is taken by another process; free it, or name another as deploy.port (null = any)")
