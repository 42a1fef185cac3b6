"""Ports of a server: whether one is free, and one that is."""

from __future__ import annotations

import random
import socket

from tasks.verdict import MachineTrouble

# Below Linux's usual ephemeral range, which outgoing connections take ports from at any moment.
_RANGE = range(20000, 32000)
_TRIES = 200


def is_free(host: str, port: int) -> bool:
    """Whether `host:port` can be bound now, as the server will bind it."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def free_port(host: str) -> int:
    """A port that is free now. Raises MachineTrouble when there is none."""
    draw = random.SystemRandom()  # two runs that start at the same time draw different ones
    for _ in range(_TRIES):
        port = draw.choice(_RANGE)
        if is_free(host, port):
            return port
    raise MachineTrouble(f"no free port on {host} between {_RANGE.start} and {_RANGE.stop}")
