"""The split into train and held-out, made before anything else: by subject, near-duplicates kept together."""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Sequence

_SHINGLE = 4
"""Words per shingle."""
_ALIKE = 0.4
"""Two texts are near-duplicates when they share this much of the shorter one's shingles."""
_COMMON = 60
"""A shingle in more texts than that is a phrase of the genre ("if the argument is omitted"), and tells nothing."""


def held_out(subjects: Sequence[str], share: float, seed: int) -> list[bool]:
    """For each subject, whether it is held out: about `share` of them, whole groups of near-duplicates at a time."""
    groups: dict[int, list[int]] = defaultdict(list)
    for index, group in enumerate(near_duplicates(subjects)):
        groups[group].append(index)
    order = list(groups.values())
    random.Random(seed).shuffle(order)
    out = [False] * len(subjects)
    wanted = max(1, round(share * len(subjects)))
    for members in order:
        if len(members) > wanted:
            continue
        for index in members:
            out[index] = True
        wanted -= len(members)
    return out


def near_duplicates(texts: Sequence[str]) -> list[int]:
    """For each text, the smallest index of its group: texts alike, or linked by texts alike."""
    shingles = [_shingles(text) for text in texts]
    holders: dict[str, list[int]] = defaultdict(list)
    for index, own in enumerate(shingles):
        for shingle in own:
            holders[shingle].append(index)
    root = list(range(len(texts)))

    def find(index: int) -> int:
        while root[index] != index:
            root[index] = root[root[index]]
            index = root[index]
        return index

    def join(one: int, other: int) -> None:
        low, high = sorted((find(one), find(other)))
        root[high] = low

    alike: dict[frozenset[str], int] = {}
    for index, own in enumerate(shingles):
        shared = Counter(other for s in own if len(holders[s]) <= _COMMON for other in holders[s] if other < index)
        for other, count in shared.items():
            if count >= _ALIKE * min(len(own), len(shingles[other])):
                join(index, other)
        join(index, alike.setdefault(own, index))  # the same text very often is common in all its shingles
    return [find(index) for index in range(len(texts))]


def _shingles(text: str) -> frozenset[str]:
    words = re.findall(r"\w+", text.lower())
    return frozenset(" ".join(words[i : i + _SHINGLE]) for i in range(max(1, len(words) - _SHINGLE + 1)))
