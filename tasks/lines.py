"""Files of lines that are larger than memory: a line is read when it is asked for."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, chain
from pathlib import Path
from typing import Generic, TypeVar, overload

T = TypeVar("T")


class Lines(Sequence[T], Generic[T]):
    """The lines of a file that are not blank, each made into a T by `parse(line, where)`, `where` = `file:number`.

    Every line is parsed once at the start, so that what `parse` raises is raised before anything is done with the file.
    Twelve bytes of memory per line.
    """

    def __init__(self, path: Path, parse: Callable[[bytes, str], T]) -> None:
        self._path, self._parse = path, parse
        self._starts, self._numbers = array("q"), array("l")
        position = 0
        with path.open("rb") as stream:
            for number, line in enumerate(stream, 1):
                if line.strip():
                    parse(line, f"{path}:{number}")
                    self._starts.append(position)
                    self._numbers.append(number)
                position += len(line)

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...

    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        with self._path.open("rb") as stream:
            stream.seek(self._starts[index])
            return self._parse(stream.readline(), f"{self._path}:{self._numbers[index]}")

    def __iter__(self) -> Iterator[T]:
        numbers = iter(self._numbers)
        with self._path.open("rb") as stream:
            for line in stream:
                if line.strip():
                    yield self._parse(line, f"{self._path}:{next(numbers)}")


class Joined(Sequence[T], Generic[T]):
    """Several sequences as one, none of them copied."""

    def __init__(self, parts: Sequence[Sequence[T]]) -> None:
        self._parts, self._ends = parts, list(accumulate(map(len, parts)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...

    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        index = range(len(self))[index]
        part = bisect_right(self._ends, index)
        return self._parts[part][index - self._ends[part]]  # counted from the part's end

    def __iter__(self) -> Iterator[T]:
        return chain.from_iterable(self._parts)
