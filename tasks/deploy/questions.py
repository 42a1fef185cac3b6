"""What a running server can be asked, whoever started it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from tasks.deploy.client import Client
from tasks.deploy.generation import Generation
from tasks.deploy.stream import largest_batch


class Questions:
    """Each raises MachineTrouble when no answer comes, with what the server's own class knows of the reason."""

    _client: Client

    def generate(self, input_ids: Sequence[int], max_new_tokens: int) -> Generation:
        """Greedy continuation of token ids, until an end token or the limit."""
        with self._trouble("a generation"):
            return self._client.generate(input_ids, max_new_tokens)

    def stream(self, input_ids: Sequence[int], max_new_tokens: int) -> Generation:
        """As `generate`, streamed, so that the time of the first token is known."""
        with self._trouble("a streamed generation"):
            return self._client.stream(input_ids, max_new_tokens)

    def info(self) -> dict[str, Any]:
        """Resolved arguments and live state, as the server reports them."""
        with self._trouble("/server_info"):
            return self._client.info()

    def flush_cache(self) -> None:
        """Forget all prefixes; it is checked that the server did."""
        with self._trouble("flushing the cache"):
            self._client.flush_cache()

    def largest_batch(self) -> int | None:
        """Requests that it decodes at the same time, each batch of them by a graph where it uses graphs."""
        return largest_batch(self.info())

    def _trouble(self, what: str) -> AbstractContextManager[None]:
        """Turns a request that failed inside of it into MachineTrouble."""
        raise NotImplementedError
