"""What the benchmark needs of a server. `tasks.deploy`'s server is one; tests have an in-process one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol


class Generation(Protocol):
    """One greedy answer, with the server's own counts of this request (SGLang 0.5.23: `meta_info`)."""

    @property
    def tokens(self) -> Sequence[int]:
        """Output token ids."""

    @property
    def prompt_tokens(self) -> int: ...

    @property
    def completion_tokens(self) -> int:
        """The token of the prefill included."""

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that came from the prefix cache."""

    @property
    def verify_rounds(self) -> int:
        """`spec_verify_ct`; 0 on a plain server."""

    @property
    def right_drafts(self) -> int:
        """`spec_num_correct_drafts`; 0 on a plain server."""

    @property
    def histogram(self) -> Sequence[int]:
        """`spec_correct_drafts_histogram`: entry j = verify rounds with j right drafts; empty on a plain server."""

    @property
    def seconds(self) -> float:
        """From sending to the whole answer, by the client's clock."""


class Endpoint(Protocol):
    """A running server. Every method may be called from several threads at once."""

    def generate(self, input_ids: Sequence[int], max_new_tokens: int) -> Generation:
        """A greedy answer of at most `max_new_tokens` tokens.

        Raises DraftproofError when the server does not answer, or answers with an error.
        """

    def flush_cache(self) -> None:
        """Forget every cached prefix; returns when that is done."""

    def check_alive(self) -> None:
        """Raises MachineTrouble when the server's processes are gone or are not the ones that were started."""


# None starts the plain server, K a speculative one that drafts K steps; ready when entered, gone when left.
Start = Callable[[int | None], AbstractContextManager[Endpoint]]
