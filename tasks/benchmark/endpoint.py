"""What the benchmark needs of a server. `tasks.deploy`'s servers are some; tests have an in-process one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from tasks.benchmark.setting import Setting


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

    @property
    def first_seconds(self) -> float:
        """From sending to the first token."""

    @property
    def first_tokens(self) -> int:
        """Tokens that came with the first one."""


class Endpoint(Protocol):
    """A running server. Every method may be called from several threads at once."""

    def stream(self, input_ids: Sequence[int], max_new_tokens: int) -> Generation:
        """A greedy answer of at most `max_new_tokens` tokens, streamed.

        Raises DraftproofError when the server does not answer, or answers with an error.
        """

    def flush_cache(self) -> None:
        """Forget every cached prefix; returns when that is done."""

    def check_alive(self) -> None:
        """Raises MachineTrouble when the server's processes are gone or are not the ones that were started."""

    def largest_batch(self) -> int | None:
        """Requests that it decodes at the same time at full speed (its own limit, and its graphs'); None = not known."""


# None starts the plain server, a setting a speculative one; ready when entered, gone when left.
Start = Callable[[Setting | None], AbstractContextManager[Endpoint]]


@dataclass(frozen=True)
class Champion:
    """The drafter that serves now, to be measured beside the candidate."""

    version: str
    """In the registry."""
    setting: Setting
    """The one that it was promoted with."""
    start: Start
    """Starts its speculative server."""
    has_room: Callable[[], bool]
    """Whether a third server fits beside the two that run when this is asked."""
