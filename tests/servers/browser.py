"""Chromium, asked over its DevTools protocol: what a page shows, and what comes of typing and clicking."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from websockets.sync.client import ClientConnection, connect

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
_OPTIONS = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", "--window-size=1400,2400"]  # root has no sandbox
_NO_NETWORK = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"


class Page:
    """The one tab."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection, self._ids = connection, itertools.count(1)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command of the protocol, and its result."""
        sent = next(self._ids)
        self._connection.send(json.dumps({"id": sent, "method": method, "params": parameters}))
        while (answer := json.loads(self._connection.recv(60))).get("id") != sent:
            continue  # an event
        assert "error" not in answer, answer
        return answer["result"]

    def evaluate(self, script: str) -> Any:
        """Its value, or that of its promise."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, script: str, seconds: float = 60) -> Any:
        """The value of the script once it is true; a page that is being loaded has no body yet."""
        deadline = time.monotonic() + seconds
        while not (value := self.evaluate(f"document.body && ({script})")):
            assert time.monotonic() < deadline, f"{script}\n{self.text}"
            time.sleep(0.2)
        return value

    @property
    def text(self) -> str:
        """What a reader sees."""
        return str(self.evaluate("document.body ? document.body.innerText : ''"))

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def type(self, element: str, text: str) -> None:
        """`element`: a script that finds it. As a keyboard does it, in place of what stood there."""
        self.evaluate(f"(() => {{ const e = {element}; e.focus(); e.select && e.select(); }})()")
        self.call("Input.insertText", text=text)


@contextmanager
def chromium(folder: Path) -> Iterator[Page]:
    """A browser with a profile in `folder`, for which no name but 127.0.0.1 resolves."""
    assert BROWSER is not None
    command = [BROWSER, *_OPTIONS, _NO_NETWORK, f"--user-data-dir={folder}", "about:blank"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            port = _port(folder / "DevToolsActivePort")
            tabs = httpx.get(f"http://127.0.0.1:{port}/json/list", trust_env=False).raise_for_status().json()
            url = next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
            with connect(url, max_size=None, proxy=None) as connection:
                yield Page(connection)
        finally:
            process.terminate()


def _port(file: Path, seconds: float = 60) -> int:
    deadline = time.monotonic() + seconds
    while not (file.is_file() and (lines := file.read_text().splitlines())):
        assert time.monotonic() < deadline, "the browser does not start"
        time.sleep(0.1)
    return int(lines[0])
