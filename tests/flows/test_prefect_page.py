"""What a flow run's page in Prefect shows while it runs, read back from a real server."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId
from prefect.context import FlowRunContext

from flows.progress import PlainLines
from flows.servers import keep_logs
from flows.session import Session
from tasks.ledger import open_ledger
from tasks.stage import StageRun, stage_task
from tasks.store import Store

pytestmark = pytest.mark.usefixtures("prefect")


def shown(body: Callable[[], None]) -> tuple[list[str], list[Any]]:
    """The lines of a flow's log, and the artifacts of its tasks, once Prefect has taken them."""

    @flow
    def work() -> Any:
        body()
        context = FlowRunContext.get()
        assert context is not None and context.flow_run is not None
        return context.flow_run.id

    id = work()
    deadline = time.monotonic() + 30
    with get_client(sync_client=True) as client:
        while True:
            lines = [log.message for log in client.read_logs(LogFilter(flow_run_id=LogFilterFlowRunId(any_=[id])))]
            if any(line.startswith("Finished in state") for line in lines) or time.monotonic() > deadline:
                return lines, [each for each in client.read_artifacts() if each.flow_run_id == id]
            time.sleep(0.2)


def test_a_stages_progress_is_a_bar_and_its_words_are_in_the_log() -> None:
    @stage_task("data")
    def answering(run: StageRun) -> None:
        run.say("400 prompts")
        for done in (1, 2, 3, 400):
            run.progress(done, 400, "conversations", {"tok/s": 250})

    def body() -> None:
        with open_ledger("tiny").run("pipeline") as run:
            answering(Session(run, PlainLines(["data"]), Store()))

    lines, artifacts = shown(body)
    assert "400 prompts" in lines
    (bar,) = [each for each in artifacts if each.type == "progress"]
    assert (bar.key, float(bar.data), bar.description) == ("data", 100, "400 of 400 conversations; tok/s 250")
    assert bar.task_run_id is not None


def test_what_a_server_wrote_is_in_the_log(tmp_path: Path) -> None:
    log = tmp_path / "plain.log"
    log.write_text('loading weights\n[19:00:01] INFO:     127.0.0.1:39262 - "POST /generate HTTP/1.1" 200 OK\nserver is ready\n')

    def body() -> None:
        with open_ledger("tiny").run("pipeline") as run:
            keep_logs(run, tmp_path, since=log.stat().st_mtime + 1)
            keep_logs(run, tmp_path)

    lines, _ = shown(body)
    assert [line for line in lines if line.startswith("plain: ")] == ["plain: loading weights", "plain: server is ready"]
