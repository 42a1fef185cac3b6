"""One pipeline run as its stages see it: each has a run in the ledger and somebody who watches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from flows.prefect_page import Bar, tell
from flows.progress import Watcher
from flows.stage_story import StageStory
from tasks.store import Store
from tasks.verdict import Verdict

if TYPE_CHECKING:
    from tasks.ledger import Run
    from tasks.stage import StageRun


class Session:
    """Opens the stages' runs below the pipeline's run. `current` is the stage that runs, or ran last."""

    def __init__(self, run: Run, watcher: Watcher, store: Store) -> None:
        self.run, self.watcher, self.store = run, watcher, store
        self.current = "environment"
        self.headlines: dict[str, float] = {}

    def headline(self, values: Mapping[str, float]) -> None:
        """Figures of the pipeline's run itself, known by the names of `design.md`."""
        self.run.log(values)
        self.headlines.update(values)

    @contextmanager
    def stage(self, name: str) -> Iterator[StageRun]:
        """Closed in the ledger and for the watcher by how the `with` statement is left."""
        self._enter(name)
        outcome, story = "stopped", StageStory(name)
        try:
            with self.run.child(name) as child, story.told_in(child):
                yield _Listener(story, child, self)
                story.cached = name in self.store.hits and name != "benchmark"  # there only the choice is kept
                outcome = "cached" if story.cached else "done"
                child.tag({"draftproof.cached": str(story.cached).lower()})
        except Exception:
            outcome = "failed"
            raise
        finally:
            self.watcher.end(name, outcome)

    @contextmanager
    def away(self, name: str) -> Iterator[Callable[[str], None]]:
        """A stage whose run in the ledger is opened where it runs, elsewhere; gives what tells the watcher."""
        outcome = "stopped"
        self._enter(name)
        try:
            yield partial(self.watcher.say, name)
            outcome = "done"
        except Exception:
            outcome = "failed"
            raise
        finally:
            self.watcher.end(name, outcome)

    def _enter(self, name: str) -> None:
        self.current = name
        self.run.tag({"draftproof.stage": name})
        self.watcher.begin(name)


class _Listener:
    """Curves and figures go to the ledger, progress and words to both the watcher and the page in Prefect."""

    def __init__(self, story: StageStory, run: Run, session: Session) -> None:
        self._stage, self._story, self._run, self._session = story.stage, story, run, session
        self._bar = Bar(story.stage)

    def progress(self, done: float, total: float, unit: str, measured: Mapping[str, float] | None = None) -> None:
        self._session.watcher.progress(self._stage, done, total, unit, measured or {})
        self._bar.show(done, total, unit, measured or {})

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        self._run.metrics(values, step)

    def say(self, text: str) -> None:
        self._session.watcher.say(self._stage, text)
        tell([text])

    def log(self, values: Mapping[str, float]) -> None:
        self._story.figures.update(values)
        self._run.log(values)

    def headline(self, values: Mapping[str, float]) -> None:
        self._session.headline(values)

    def verdict(self, verdict: Verdict) -> None:
        self._story.verdict = verdict
        self._run.verdict(verdict)

    def tag(self, values: Mapping[str, str]) -> None:
        self._run.tag(values)

    def pipeline_tag(self, values: Mapping[str, str]) -> None:
        self._run.tag(values)
        self._session.run.tag(values)

    def text(self, name: str, content: str) -> None:
        self._story.artifacts.append(name)
        self._run.text(name, content)

    def refer(self, files: Mapping[str, tuple[Path, str]]) -> None:
        self._run.refer(files)


class Watched:
    """A `Report` for one stage that runs outside of a pipeline: a watcher listens, no ledger."""

    def __init__(self, stage: str, watcher: Watcher) -> None:
        self._stage, self._watcher = stage, watcher

    def __enter__(self) -> Self:
        self._watcher.begin(self._stage)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._watcher.end(self._stage, "done" if kind is None else "failed" if issubclass(kind, Exception) else "stopped")

    def progress(self, done: float, total: float, unit: str, measured: Mapping[str, float] | None = None) -> None:
        self._watcher.progress(self._stage, done, total, unit, measured or {})

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        return None

    def say(self, text: str) -> None:
        self._watcher.say(self._stage, text)
