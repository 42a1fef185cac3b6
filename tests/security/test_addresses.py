"""A password in an address is used, and never told: not by errors, nor logs, nor the commands that we propose."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
from rich.console import Console

from flows import run as runs
from flows.outcome import RunReport
from flows.prefect_api import prefect_api
from tasks.addresses import taken_apart, told
from tasks.ledger import open_ledger
from tasks.ledger.store import tracking_uri
from tasks.verdict import BadInput, MachineTrouble
from tests.flows.test_cli import draftproof

SECRET = "canary-p@ss"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://user:p@ss@host:5000/x?y=1", "http://***@host:5000/x?y=1"),
        ("MLflow store postgresql://me:secret@db/mlflow: refused", "MLflow store postgresql://***@db/mlflow: refused"),
        (
            "postgresql+psycopg://db/mlflow?user=me&password=secret&sslmode=require",
            "postgresql+psycopg://db/mlflow?user=me&password=***&sslmode=require",
        ),
        ("two: http://a:b@c http://d:e@f/", "two: http://***@c http://***@f/"),
        ("http://127.0.0.1:9/api, mail me@here", "http://127.0.0.1:9/api, mail me@here"),
        ("sqlite:////home/me/mlflow.db", "sqlite:////home/me/mlflow.db"),
    ],
)
def test_what_is_told_of_an_address(text: str, shown: str) -> None:
    assert told(text) == shown


def test_an_address_is_taken_apart() -> None:
    assert taken_apart("https://me:p%40ss@host:1/x?y=z") == ("https://host:1/x?y=z", "me", "p@ss")
    assert taken_apart("http://127.0.0.1:9") == ("http://127.0.0.1:9", None, None)


def test_no_error_of_ours_tells_a_password() -> None:
    url = f"http://me:{SECRET}@host/"
    errors = [MachineTrouble(f"{url}: gone"), BadInput(url, found=url, expected="another", do=f"See {url}.")]
    assert not [error for error in errors if SECRET in str(error) or "***@host" not in str(error)]
    assert SECRET not in RunReport.of_fault(RuntimeError(url)).message


@pytest.fixture
def asked() -> Iterator[list[str]]:
    """A server that is no MLflow server; the Authorization headers that it was sent, the last one first entry being its address."""
    seen: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

        def answer(self) -> None:
            seen.append(self.headers.get("Authorization", ""))
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_POST = answer

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    seen.append(f"127.0.0.1:{server.server_port}")
    yield seen
    server.shutdown()
    thread.join()
    server.server_close()


def test_mlflow_is_given_the_password_and_its_errors_do_not_tell_it(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"USERNAME": "", "PASSWORD": "", "URI": f"http://me:{SECRET.replace('@', '%40')}@{asked[0]}"}.items():
        monkeypatch.setenv(f"MLFLOW_TRACKING_{name}", value)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    with pytest.raises(MachineTrouble) as caught:
        open_ledger("tiny")
    assert f"Basic {base64.b64encode(f'me:{SECRET}'.encode()).decode()}" in asked[1:]
    assert tracking_uri() == f"http://{asked[0]}" == os.environ["MLFLOW_TRACKING_URI"]
    told_by, error = [], caught.value
    while error is not None:
        told_by.append(str(error))
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    assert len(told_by) > 1 and not [text for text in told_by if "canary" in text], told_by


def test_prefect_is_given_the_password_apart_from_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "")
    monkeypatch.setenv("PREFECT_HOME", "/nowhere")
    monkeypatch.setenv("PREFECT_API_URL", f"http://me:{SECRET}@127.0.0.1:9/api")
    with prefect_api() as api:
        assert (api.url, os.environ["PREFECT_API_URL"]) == ("http://127.0.0.1:9/api",) * 2
        assert os.environ["PREFECT_API_AUTH_STRING"] == f"me:{SECRET}"


def test_the_command_that_opens_a_page_holds_no_password(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    class Client:
        def get_run(self, _: str) -> Client:
            return self

        info = type("Info", (), {"experiment_id": "1"})

    monkeypatch.setattr("tasks.ledger.store.connect", Client)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"postgresql://me:{SECRET}@db/mlflow")
    runs._tell_page(Console(), "abc")
    shown = capsys.readouterr().out
    assert 'open it with: MLFLOW_BACKEND_STORE_URI="$MLFLOW_TRACKING_URI" ' in shown and "mlflow ui --port" in shown
    assert "canary" not in shown


def test_the_command_line_and_its_report_tell_none(tmp_path: Path) -> None:
    uri = f"postgresql+nothing://me:{SECRET}@127.0.0.1:9/mlflow"
    done = draftproof("history", MLFLOW_TRACKING_URI=uri, DRAFTPROOF_HOME=str(tmp_path))
    assert done.returncode != 0 and "canary" not in done.stdout + done.stderr, done.stderr
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"canary" in path.read_bytes()]
