"""Two servers start at once, and neither is left, however the benchmark ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tasks.benchmark.servers import Servers
from tasks.benchmark.setting import Setting
from tasks.verdict import MachineTrouble
from tests.benchmark.decoder import Machine, Server


class SlowMachine(Machine):
    """Starts that last until they are let through."""

    def __init__(self) -> None:
        super().__init__()
        self.starting: set[int | None] = set()
        self.let_through = threading.Event()
        self.fails: set[int | None] = set()

    @contextmanager
    def start(self, setting: Setting | None) -> Iterator[Server]:
        steps = setting.steps if setting else None
        self.starting.add(steps)
        assert self.let_through.wait(10)
        if steps in self.fails:
            raise MachineTrouble(f"no memory for {steps}")
        with super().start(setting) as server:
            yield server


def soon(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 10
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    return condition()


def test_the_first_two_start_at_the_same_time() -> None:
    machine = SlowMachine()
    threading.Thread(target=lambda: soon(lambda: machine.starting == {None, 2}) and machine.let_through.set()).start()
    with Servers(machine.start) as servers:
        pair = servers.pair(Setting(steps=2))
        assert sorted(machine.running, key=str) == [2, None]
        assert servers.pair(Setting(steps=2)) is pair
        assert servers.pair(Setting(steps=3)) is not pair
        assert sorted(machine.running, key=str) == [3, None]
    assert machine.running == []
    assert machine.most_running == 2


@pytest.mark.parametrize("fails", [{None}, {2}, {None, 2}])
def test_a_start_that_fails_ends_the_other_server(fails: set[int | None]) -> None:
    machine = SlowMachine()
    machine.fails = fails
    machine.let_through.set()
    with pytest.raises(MachineTrouble, match="no memory"), Servers(machine.start) as servers:
        servers.pair(Setting(steps=2))
    assert machine.running == []


def test_an_interruption_waits_for_no_start_and_leaves_no_server() -> None:
    machine = SlowMachine()

    def interrupted() -> None:
        with Servers(machine.start) as servers:
            threading.Thread(target=servers.pair, args=(Setting(steps=2),), daemon=True).start()
            assert soon(lambda: machine.starting == {None, 2})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert machine.started == []  # both are still starting
    machine.let_through.set()
    assert soon(lambda: sorted(machine.started, key=str) == [2, None] and machine.running == [])
