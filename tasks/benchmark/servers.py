"""The two servers of a pair: started at the same time, never more than one of each kind, gone when left."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from tasks.benchmark.endpoint import Endpoint, Start
from tasks.benchmark.measure import Pair
from tasks.benchmark.setting import Setting


class Servers:
    """The plain server, and at most one speculative server beside it. Leaving the `with` block ends both."""

    def __init__(self, start: Start) -> None:
        self._start = start
        self._plain: _Starting | None = None
        self._speculative: _Starting | None = None
        self._pair: Pair | None = None

    def pair(self, setting: Setting) -> Pair:
        """The plain server with the one that drafts by `setting`; what does not run yet is started.

        The first two start at the same time: a start is mostly imports, which leave a core idle half of the time.
        Raises whatever a start raises, after the other one has been ended.
        """
        if self._pair is None or self._pair.setting != setting:
            self._end_speculative()
            self._plain = self._plain or _Starting(self._start, None)
            self._speculative = _Starting(self._start, setting)
            self._pair = Pair(plain=self._plain.endpoint(), speculative=self._speculative.endpoint(), setting=setting)
        return self._pair

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        interrupted = kind is not None and not issubclass(kind, Exception)
        for server in (self._speculative, self._plain):
            if server is not None:
                server.end(wait=not interrupted)

    def _end_speculative(self) -> None:
        self._pair = None
        if self._speculative is not None:
            self._speculative.end(wait=True)
        self._speculative = None


class _Starting:
    """A server that starts in a thread of its own, and is ended by us however far it has got.

    Whoever is interrupted does not wait for a start: the thread is a daemon, and ends its server itself as soon as
    that has started; if the process is gone by then, the server's own watch does.
    """

    def __init__(self, start: Start, setting: Setting | None) -> None:
        self._start, self._setting = start, setting
        self._stack = ExitStack()
        self._endpoint: Endpoint | None = None
        self._error: BaseException | None = None
        self._through = self._given_up = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"start of a server, {setting}")
        self._thread.start()

    def endpoint(self) -> Endpoint:
        """Waits until the server is ready. Raises what its start raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._endpoint is not None, "a start ends with a server or with an error"
        return self._endpoint

    def end(self, *, wait: bool) -> None:
        """End the server; one that is still starting is waited for, or left to end itself when it is through."""
        if wait:
            self._thread.join()
        with self._lock:
            self._given_up, through = True, self._through
        if through:
            self._stack.close()

    def _run(self) -> None:
        try:
            self._endpoint = self._stack.enter_context(self._start(self._setting))
        except BaseException as error:  # handed to whoever waits for the server
            self._error = error
        with self._lock:
            self._through, given_up = True, self._given_up
        if given_up:
            self._stack.close()
