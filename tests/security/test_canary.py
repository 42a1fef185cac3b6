"""The searches find what they look for where it is: the tests in which they find nothing say something."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from pathlib import Path

from tests.security.canary import CANARIES, beyond_this_machine, files_that_tell, watched

LISTEN = "import socket, sys, time; s = [socket.create_server((h, 0)) for h in ('127.0.0.1', '0.0.0.0')]; time.sleep(60)"


def test_a_canary_is_found_in_files_of_any_kind(tmp_path: Path) -> None:
    secret = CANARIES["HF_TOKEN"]
    (tmp_path / "deep" / "logs").mkdir(parents=True)
    (tmp_path / "deep" / "logs" / "server.log").write_text(f"server_args={{'api_key': '{secret}'}}\n")
    ledger = sqlite3.connect(tmp_path / "ledger.db")
    with ledger:
        ledger.execute("create table params (value text)")
        ledger.execute("insert into params values (?)", (secret,))
    ledger.close()
    (tmp_path / "clean").write_text("nothing")
    assert files_that_tell(tmp_path) == [str(tmp_path / "deep/logs/server.log"), str(tmp_path / "ledger.db")]


def test_command_lines_and_sockets_are_seen() -> None:
    command = [sys.executable, "-c", LISTEN, CANARIES["SERVING_KEY"]]
    with watched(0.05) as seen, subprocess.Popen(command) as told:
        deadline = time.monotonic() + 20
        while not (seen.command_lines and len(seen.sockets) == 2) and time.monotonic() < deadline:
            time.sleep(0.05)
        told.kill()
    assert any(CANARIES["SERVING_KEY"] in line for line in seen.command_lines)
    assert len(seen.sockets) == 2 and [socket.partition(":")[0] for socket in beyond_this_machine(seen.sockets)] == ["0.0.0.0"]
