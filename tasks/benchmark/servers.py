"""The servers that are compared: started at the same time, never more than one of each kind, gone when left."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from types import TracebackType
from typing import Self

from tasks.benchmark.endpoint import Champion, Endpoint, Start
from tasks.benchmark.measure import Pair
from tasks.benchmark.results import ServerName
from tasks.benchmark.setting import Setting


class Servers:
    """The plain server, and at most one speculative server of the candidate and one of the champion beside it.

    Leaving the `with` block ends all of them.
    """

    def __init__(self, start: Start, champion: Champion | None = None) -> None:
        self._start, self._champion = start, champion
        self._running: dict[ServerName, _Starting] = {}
        self._pair: Pair | None = None

    def pair(self, setting: Setting, others: Sequence[ServerName] = ("speculative",)) -> Pair:
        """The plain server with `others`: the candidate's, drafting by `setting`, the champion's, or both.

        What does not run yet is started, at the same time (a start is mostly imports, which leave a core idle half of the
        time), after what is not asked for was ended. Raises whatever a start raises, after the others have been ended.
        """
        names: list[ServerName] = ["plain", *others]
        if self._pair is not None and (self._pair.setting, list(self._pair.servers)) == (setting, names):
            return self._pair
        stay = set(names) if self._pair is None or self._pair.setting == setting else set(names) - {"speculative"}
        self._pair = None
        for name in [name for name in self._running if name not in stay]:
            self._running.pop(name).end(wait=True)
        for name in names:
            if name not in self._running:
                self._running[name] = _Starting(self._starter(name, setting), name)
        self._pair = Pair({name: self._running[name].endpoint() for name in names}, setting)
        return self._pair

    def _starter(self, name: ServerName, setting: Setting) -> Callable[[], AbstractContextManager[Endpoint]]:
        if name == "champion":
            assert self._champion is not None, "asked for only where there is one"
            return partial(self._champion.start, self._champion.setting)
        return partial(self._start, setting if name == "speculative" else None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        interrupted = kind is not None and not issubclass(kind, Exception)
        for server in reversed(list(self._running.values())):
            server.end(wait=not interrupted)


class _Starting:
    """A server that starts in a thread of its own, and is ended by us however far it has got.

    Whoever is interrupted does not wait for a start: the thread is a daemon, and ends its server itself as soon as
    that has started; if the process is gone by then, the server's own watch does.
    """

    def __init__(self, start: Callable[[], AbstractContextManager[Endpoint]], name: str) -> None:
        self._start = start
        self._stack = ExitStack()
        self._endpoint: Endpoint | None = None
        self._error: BaseException | None = None
        self._through = self._given_up = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"start of the {name} server")
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
            self._endpoint = self._stack.enter_context(self._start())
        except BaseException as error:  # handed to whoever waits for the server
            self._error = error
        with self._lock:
            self._through, given_up = True, self._given_up
        if given_up:
            self._stack.close()
