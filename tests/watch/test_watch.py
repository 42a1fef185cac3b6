"""Counters of a server, kept over time, and the test for a fall."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tasks.ledger import open_ledger
from tasks.verdict import BadInput, MachineTrouble
from tasks.watch import Counters, Interval, fallen, read_counters
from tasks.watch.kept import ServerCurve

# As sglang 0.5.23 writes it: one worker that streams, and one that does not.
PAGE = """# HELP sglang:spec_verify_calls_total Number of speculative decoding verification calls.
# TYPE sglang:spec_verify_calls_total counter
sglang:spec_verify_calls_total{engine_type="unified",model_name="tiny",tp_rank="0"} 40.0
# TYPE sglang:generation_tokens_total counter
sglang:generation_tokens_total{engine_type="unified",is_streaming="False",model_name="tiny"} 70.0
sglang:generation_tokens_total{engine_type="unified",is_streaming="True",model_name="tiny"} 35.0
# TYPE sglang:num_requests_total counter
sglang:num_requests_total{engine_type="unified",is_streaming="False",model_name="tiny"} 5.0
"""
Serve = Callable[[str, int], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers: list[HTTPServer] = []

    def start(page: str, status: int = 200) -> str:
        class Page(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                self.end_headers()
                self.wfile.write(page.encode())

            def log_message(self, *_: object) -> None:
                return None

        server = HTTPServer(("127.0.0.1", 0), Page)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_counters_are_summed_over_labels(serve: Serve) -> None:
    found = read_counters(serve(PAGE, 200))
    assert found == Counters(requests=5, generated=105, rounds=40)
    assert found.accept_length == pytest.approx(100 / 40)


def test_a_server_without_metrics_or_speculation_is_told_so(serve: Serve) -> None:
    with pytest.raises(BadInput, match=r"404.*deploy\.metrics"):
        read_counters(serve("", 404))
    with pytest.raises(BadInput, match="speculates"):
        read_counters(serve("".join(line + "\n" for line in PAGE.splitlines() if "verify" not in line), 200))
    with pytest.raises(MachineTrouble):
        read_counters("http://127.0.0.1:1")


def test_a_restarted_server_counts_from_zero() -> None:
    before, after = Counters(requests=9, generated=90, rounds=30), Counters(requests=2, generated=22, rounds=10)
    assert after.since(before) == after
    assert Counters(requests=10, generated=100, rounds=35).since(before) == Counters(requests=1, generated=10, rounds=5)


def served(mean: float, count: int, seed: int) -> list[Interval]:
    draw = random.Random(seed)
    return [Interval(accept_length=draw.gauss(mean, 0.05), rounds=draw.randint(200, 900)) for _ in range(count)]


def test_a_lasting_fall_is_found_and_noise_is_not() -> None:
    assert fallen([*served(2.1, 20, 0), *served(1.8, 6, 1)]).fallen
    assert not fallen([*served(2.1, 20, 0), *served(1.8, 2, 1)]).fallen, "two low intervals do not last"
    assert not fallen(served(2.1, 10, 0)).fallen
    alarms = sum(fallen(served(2.1, 26, seed)).fallen for seed in range(400))
    assert alarms == 0
    small = fallen([*served(2.1, 40, 0), *served(2.08, 6, 1)])
    assert not small.fallen and "as before" in small.message


def test_intervals_are_kept_in_mlflow() -> None:
    ledger = open_ledger("tiny")
    for step, rounds in enumerate((30, 60)):
        curve = ServerCurve.of(ledger, "http://127.0.0.1:1", "champion")
        with curve.run:
            curve.add(Counters(requests=1, generated=2 * rounds + 1, rounds=rounds), Counters(requests=9, generated=9, rounds=9), step)
    again = ServerCurve.of(ledger, "http://127.0.0.1:1", "champion")
    assert again.intervals() == [Interval(accept_length=2.0, rounds=30), Interval(accept_length=2.0, rounds=60)]
    assert again.last() == Counters(requests=9, generated=9, rounds=9)
    assert ServerCurve.of(ledger, "http://127.0.0.1:2", "champion").run.id != again.run.id
