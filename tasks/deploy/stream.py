"""A streamed generation, timed token by token; and how many requests a server decodes at once."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

import httpx

from tasks.verdict import MachineTrouble


class Streamed:
    """The last event of a stream and when its tokens came, in seconds from sending the request."""

    def __init__(self, content: dict[str, Any], seconds: float, first_seconds: float, first_tokens: int) -> None:
        self.content, self.seconds, self.first_seconds, self.first_tokens = content, seconds, first_seconds, first_tokens


def stream(http: httpx.Client, body: Mapping[str, Any]) -> Streamed:
    """Send `body` to /generate and read events to the end. Raises httpx.HTTPError, and MachineTrouble for an error or no token.

    Without `--incremental-streaming-output`, which is never asked for, each event repeats all tokens so far
    (sglang 0.5.23, srt/managers/tokenizer_manager.py:2629-2660).
    """
    first: tuple[float, int] | None = None
    content: dict[str, Any] | None = None
    begun = time.perf_counter()
    with http.stream("POST", "/generate", json={**body, "stream": True}) as answer:
        if answer.status_code != httpx.codes.OK:
            raise MachineTrouble(f"{answer.url}: status {answer.status_code}: {answer.read().decode(errors='replace')[:500]}")
        for event in _events(answer):
            if "error" in event:
                raise MachineTrouble(f"{answer.url}: {event['error']}")
            content = event
            if first is None and event.get("output_ids"):
                first = time.perf_counter() - begun, len(event["output_ids"])
    taken = time.perf_counter() - begun
    if content is None or first is None:
        raise MachineTrouble(f"{answer.url}: the stream ended without a token")
    return Streamed(content, taken, *first)


def _events(answer: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in answer.iter_lines():
        if line.startswith("data:") and (data := line[5:].strip()) != "[DONE]":
            try:
                event = json.loads(data)
            except ValueError as error:
                raise MachineTrouble(f"{answer.url}: an event that is no JSON: {data[:200]}") from error
            yield event


def largest_batch(info: Mapping[str, Any]) -> int | None:
    """By `/server_info`: requests that run at once, and are still covered by a graph where decoding uses graphs."""
    graphs = (info.get("cuda_graph_config") or {}).get("decode") or {}
    limits = [info.get("max_running_requests"), graphs.get("max_bs") if graphs.get("backend") not in (None, "disabled") else None]
    known = [int(limit) for limit in limits if limit]
    return min(known, default=None)
