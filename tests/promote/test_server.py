"""The registry of a real MLflow server, as `make up` starts it: it checks more than the store below it does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_fixed

from tasks.deploy.ports import free_port
from tasks.ledger import Ledger, open_ledger
from tasks.promote import find_release
from tasks.verdict import Outcome
from tests.promote.test_registry import drafter, promoted, release


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    address = f"http://127.0.0.1:{free_port('127.0.0.1')}"
    store = ["--backend-store-uri", f"sqlite:///{tmp_path / 'mlflow.db'}", "--artifacts-destination", str(tmp_path / "artifacts")]
    command = [str(Path(sys.executable).with_name("mlflow")), "server", *store, "--port", address.rpartition(":")[2], "--workers", "1"]
    with (tmp_path / "mlflow.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        answers(address)
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        yield open_ledger("tiny")
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


@retry(retry=retry_if_exception_type(httpx.HTTPError), stop=stop_after_delay(120), wait=wait_fixed(0.2), reraise=True)
def answers(address: str) -> None:
    httpx.get(f"{address}/health", trust_env=False).raise_for_status()


def test_a_server_takes_a_drafter_and_gives_it_back(ledger: Ledger, tmp_path: Path) -> None:
    made = release(drafter(tmp_path / "d"), "served-eagle3")
    for version in ("1", "2"):  # the second uploads nothing
        promotion, _ = promoted(ledger, made, Outcome.PASS)
        assert (promotion.version, promotion.alias) == (version, "champion")
    found, _ = find_release(ledger.client, "served-eagle3")
    assert (found.drafter / "model.safetensors").read_bytes() == (made.drafter / "model.safetensors").read_bytes()
