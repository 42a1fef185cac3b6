"""The search for canaries finds one where there is one: the tests that find none say something."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from pathlib import Path

from tests.security.canary import CANARIES, command_lines_watched, files_that_tell


def test_a_canary_is_found_in_files_of_any_kind(tmp_path: Path) -> None:
    secret = CANARIES["HF_TOKEN"]
    (tmp_path / "deep" / "logs").mkdir(parents=True)
    (tmp_path / "deep" / "logs" / "server.log").write_text(f"server_args={{'api_key': '{secret}'}}\n")
    with sqlite3.connect(tmp_path / "ledger.db") as ledger:
        ledger.execute("create table params (value text)")
        ledger.execute("insert into params values (?)", (secret,))
    ledger.close()
    (tmp_path / "clean").write_text("nothing")
    assert files_that_tell(tmp_path) == [str(tmp_path / "deep/logs/server.log"), str(tmp_path / "ledger.db")]


def test_a_canary_on_a_command_line_is_seen() -> None:
    command = [sys.executable, "-c", "import time; time.sleep(60)", CANARIES["SERVING_KEY"]]
    with command_lines_watched(0.05) as seen, subprocess.Popen(command) as told:
        deadline = time.monotonic() + 20
        while not seen and time.monotonic() < deadline:
            time.sleep(0.05)
        told.kill()
    assert any(CANARIES["SERVING_KEY"] in line for line in seen)
