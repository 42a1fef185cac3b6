"""`make up` in a home of its own, asked by the `prefect` command and Prefect's API; a webhook's other end; a client that never stops."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
from tenacity import retry, retry_if_result, stop_after_delay, wait_fixed

from flows.automations import ADDRESS
from tasks.processes import family
from tests.security.canary import WORD
from tests.servers.running import PROJECT, Place
from tests.tiny import STYLES, TOPICS, story

PREFECT = Path(sys.executable).with_name("prefect")


class Receiver:
    """What a webhook's address leads to: keeps every text that is sent."""

    def __init__(self) -> None:
        texts = self.texts = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                texts.append((self.path, self.headers["Content-Type"], content["text"]))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                return None

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.path = f"/{WORD}"
        self.address = f"http://127.0.0.1:{self._server.server_port}{self.path}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def told(self, word: str) -> list[str]:
        """Texts that hold the word; each came as it should."""
        assert {(path, kind) for path, kind, _ in self.texts} <= {(self.path, "application/json")}
        return [text for _, _, text in self.texts if word in text]


@dataclass
class Operated:
    """Prefect server, MLflow server and worker of a place, once they are up."""

    place: Place
    receiver: Receiver
    ports: dict[str, int]

    @property
    def environment(self) -> dict[str, str]:
        return {**self.place.environment, "PREFECT_HOME": str(self.place.folder / "user")}

    @property
    def mlflow(self) -> str:
        return f"http://127.0.0.1:{self.ports['mlflow']}"

    @property
    def log(self) -> str:
        """The worker's, and that of the flows that it runs."""
        return (self.place.home / "services" / "worker.log").read_text(errors="replace")

    def up(self) -> str:
        ports = [word for name, port in self.ports.items() for word in (f"--{name}-port", str(port))]
        return self._call([sys.executable, "infra/services.py", "up", *ports], {**self.environment, ADDRESS: self.receiver.address})

    def down(self) -> str:
        return self._call([sys.executable, "infra/services.py", "down"], self.environment)

    def draftproof(self, *words: str) -> str:
        environment = {**self.environment, "MLFLOW_TRACKING_URI": self.mlflow}
        return self._call([sys.executable, "-m", "flows.cli", *words], environment)

    def prefect(self, *words: str, fails: bool = False) -> str:
        """From a folder that is not the project's."""
        return self._call([str(PREFECT), *words], self.environment, cwd=self.place.folder, status=1 if fails else 0)

    def _call(self, command: list[str], environment: dict[str, str], *, cwd: Path = PROJECT, status: int = 0) -> str:
        done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=420, check=False)
        assert done.returncode == status, done.stdout[-3000:] + done.stderr[-3000:] + self._tail()
        return done.stdout + done.stderr

    def _tail(self) -> str:
        path = self.place.home / "services" / "worker.log"
        return path.read_text(errors="replace")[-6000:] if path.is_file() else ""

    def api(self, method: str, path: str, body: object = None) -> Any:
        url = f"http://127.0.0.1:{self.ports['prefect']}/api/{path}"
        answer = self._asked(method, url, body).raise_for_status()
        return answer.json() if answer.content else None

    @staticmethod
    @retry(retry=retry_if_result(lambda answer: answer.status_code == 503), stop=stop_after_delay(60), wait=wait_fixed(0.5))
    def _asked(method: str, url: str, body: object) -> httpx.Response:
        """Prefect's server says 503 where its SQLite file is held by another writer; its own client asks again too."""
        return httpx.request(method, url, json=body, timeout=60, trust_env=False)

    def start(self, deployment: str, parameters: dict[str, Any]) -> str:
        """Id of a run that nobody waits for."""
        return flow_run_id(self.prefect("deployment", "run", deployment, "-p", f"parameters={json.dumps(parameters)}"))

    def run(self, deployment: str, parameters: dict[str, Any], *, fails: bool = False) -> dict[str, Any]:
        """The flow run, ended, as a user has it who types `prefect deployment run … --watch`."""
        words = ("deployment", "run", deployment, "-p", f"parameters={json.dumps(parameters)}", "--watch")
        return self.flow_run(flow_run_id(self.prefect(*words, fails=fails)))

    def flow_run(self, id: str) -> dict[str, Any]:
        return self.api("GET", f"flow_runs/{id}")

    def runs_of(self, deployment: str) -> list[dict[str, Any]]:
        id = self.api("GET", f"deployments/name/{deployment}")["id"]
        return self.api("POST", "flow_runs/filter", {"deployments": {"id": {"any_": [id]}}})

    def until(self, there: Callable[[], Any], what: str, seconds: float = 180) -> Any:
        """What it gives once it is true."""
        deadline = time.monotonic() + seconds
        while not (found := there()):
            assert time.monotonic() < deadline, f"no {what}; {self.receiver.texts}\n{self._tail()}"
            time.sleep(0.3)
        return found

    def kill_worker(self) -> None:
        """As when its machine dies: with every process that it started, and no chance to say so."""
        record = json.loads((self.place.home / "services" / "worker.json").read_text())
        everything = family(record["process"]["pid"])
        assert len(everything) > 1, "no flow's process to be killed"
        for process in everything:
            process.signal(signal.SIGKILL)
        self.until(lambda: not any(process.alive for process in everything), "end of the worker", 20)


def flow_run_id(told: str) -> str:
    found = re.search(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", told)
    assert found, told
    return found[0]


def ask(url: str, topic: str = TOPICS[0], style: str = STYLES[0], words: int = 30) -> bool:
    """Whether the kept server answers what the target would."""
    question = {"messages": [{"role": "user", "content": f"{topic} {style}"}], "max_tokens": words, "temperature": 0, "model": "any"}
    answer = httpx.post(f"{url}/v1/chat/completions", json=question, timeout=60, trust_env=False).raise_for_status().json()
    return answer["choices"][0]["message"]["content"].split() == story(topic, style)[:words]


class Client:
    """Asks whatever server is noted as the model's, again and again; one that is gone by then is asked for anew, once."""

    def __init__(self, note: Path) -> None:
        self.note = note
        self.right: dict[str, int] = {}
        self.wrong: list[str] = []

    @contextmanager
    def at_work(self) -> Iterator[None]:
        ended = threading.Event()

        def work() -> None:
            while not ended.wait(0.25):
                self._ask()

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _ask(self) -> None:
        for attempt in range(2):
            url = self.note.read_text()
            try:
                if ask(url, words=6):
                    self.right[url] = self.right.get(url, 0) + 1
                else:
                    self.wrong.append(f"{url}: another answer")
                return
            except httpx.HTTPError as error:
                if attempt:
                    self.wrong.append(f"{url}: {error!r}")
