"""A server that is already running, started by somebody else: asked, and never ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import httpx

from tasks.deploy.client import Client, Impostor
from tasks.deploy.generation import Generation
from tasks.deploy.stream import largest_batch
from tasks.verdict import BadInput, MachineTrouble


class AttachedServer:
    """Answers are taken only from the server that was there at first: its weight version is remembered.

    Raises BadInput when nothing that SGLang is answers at `url`.
    """

    def __init__(self, url: str, request_seconds: float) -> None:
        self.url = url.rstrip("/")
        self._client = Client(self.url, _identity(self.url), request_seconds)

    def generate(self, input_ids: Sequence[int], max_new_tokens: int) -> Generation:
        """As `Server.generate`."""
        with self._trouble("a generation"):
            return self._client.generate(input_ids, max_new_tokens)

    def stream(self, input_ids: Sequence[int], max_new_tokens: int) -> Generation:
        """As `Server.stream`."""
        with self._trouble("a streamed generation"):
            return self._client.stream(input_ids, max_new_tokens)

    def info(self) -> dict[str, Any]:
        """As `Server.info`."""
        with self._trouble("/server_info"):
            return self._client.info()

    def flush_cache(self) -> None:
        """As `Server.flush_cache`."""
        with self._trouble("flushing the cache"):
            self._client.flush_cache()

    def largest_batch(self) -> int | None:
        """As `Server.largest_batch`."""
        return largest_batch(self.info())

    def check_alive(self) -> None:
        """Raises MachineTrouble when the server does not answer any more."""
        with self._trouble("/model_info"):
            if not self._client.is_up():
                raise MachineTrouble(f"{self.url}: the server does not answer any more")

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @contextmanager
    def _trouble(self, what: str) -> Iterator[None]:
        try:
            yield
        except (httpx.HTTPError, Impostor) as error:
            raise MachineTrouble(f"{self.url}: {what} failed: {type(error).__name__}: {error}") from error


def _identity(url: str) -> str:
    try:
        answer = httpx.get(f"{url}/model_info", timeout=10, trust_env=False)
        return str(answer.raise_for_status().json()["weight_version"])
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError) as error:
        raise BadInput(
            url, found=f"no SGLang server ({type(error).__name__}: {error})", expected="the address of one", do="Start it first."
        ) from error
