"""The split into train and held-out, made before anything else: by subject, near-duplicates kept together."""

from __future__ import annotations

import hashlib
import random
import re
import sqlite3
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing
from itertools import groupby
from operator import itemgetter

_SHINGLE = 4
"""Words per shingle."""
_ALIKE = 0.4
"""Two texts are near-duplicates when they share this much of the shorter one's shingles."""
_COMMON = 60
"""A shingle in more texts than that is a phrase of the genre ("if the argument is omitted"), and tells nothing."""


def held_out(subjects: Iterable[str], share: float, seed: int) -> Sequence[bool]:
    """For each subject, whether it is held out: about `share` of them, whole groups of near-duplicates at a time."""
    group_of = near_duplicates(subjects)
    sizes = Counter(group_of)
    order = list(sizes)
    random.Random(seed).shuffle(order)
    wanted = max(1, round(share * len(group_of)))
    out = set()
    for group in order:
        if sizes[group] <= wanted:
            out.add(group)
            wanted -= sizes[group]
    return [group in out for group in group_of]


def near_duplicates(texts: Iterable[str]) -> Sequence[int]:
    """For each text, the smallest index of its group: texts alike, or linked by texts alike.

    The shingles, which are many times the texts, stand in a temporary file that SQLite keeps, not in memory.
    """
    with closing(sqlite3.connect("")) as file:
        sizes = _fill(file, texts)
        root = array("l", range(len(sizes)))

        def find(index: int) -> int:
            while root[index] != index:
                root[index] = root[root[index]]
                index = root[index]
            return index

        def join(one: int, other: int) -> None:
            low, high = sorted((find(one), find(other)))
            root[high] = low

        for index, pairs in groupby(file.execute(_SHARING), key=itemgetter(0)):
            for other, count in Counter(other for _, other in pairs).items():
                if count >= _ALIKE * min(sizes[index], sizes[other]):
                    join(index, other)
        for index, first in file.execute(_SAME):  # the same text very often is common in all its shingles
            join(index, first)
        return [find(index) for index in range(len(root))]


# Of each text in turn, every earlier text that shares a shingle with it, once per shingle. CROSS: in this order.
_SHARING = """SELECT one.text, other.text FROM held one
    CROSS JOIN held other ON other.shingle = one.shingle AND other.text < one.text ORDER BY one.rowid"""
_SAME = """SELECT text, first FROM whole JOIN (SELECT digest, min(text) AS first FROM whole GROUP BY digest) USING (digest)
    WHERE text <> first"""


def _fill(file: sqlite3.Connection, texts: Iterable[str]) -> Sequence[int]:
    """`held` (shingle, text) without common shingles, `whole` (digest of all shingles, text); the number of each text's shingles."""
    sizes = array("l")
    file.execute("CREATE TABLE held (shingle INTEGER, text INTEGER)")
    file.execute("CREATE TABLE whole (digest INTEGER, text INTEGER)")
    for index, text in enumerate(texts):
        shingles = sorted(map(_hash, _shingles(text)))
        sizes.append(len(shingles))
        file.executemany("INSERT INTO held VALUES (?, ?)", ((shingle, index) for shingle in shingles))
        file.execute("INSERT INTO whole VALUES (?, ?)", (_hash(repr(shingles)), index))
    file.execute("CREATE INDEX by_shingle ON held (shingle, text)")
    file.execute("DELETE FROM held WHERE shingle IN (SELECT shingle FROM held GROUP BY shingle HAVING count(*) > ?)", (_COMMON,))
    return sizes


def _shingles(text: str) -> set[str]:
    words = re.findall(r"\w+", text.lower())
    return {" ".join(words[i : i + _SHINGLE]) for i in range(max(1, len(words) - _SHINGLE + 1))}


def _hash(text: str) -> int:
    """64 bits with a sign, as SQLite's integers have."""
    return int.from_bytes(hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest(), signed=True)
