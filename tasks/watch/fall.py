"""Whether acceptance fell for good: a burst of odd requests is not a fall, and neither is noise."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

RECENT = 6
"""Intervals that have to lie low together."""
REFERENCE = 8
"""Intervals before them that are needed to know what was usual."""


class Interval(BaseModel):
    """What one look at the server added."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    accept_length: float
    rounds: float = Field(gt=0)


class Fall(BaseModel):
    """What the comparison of the last intervals with those before them says."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    fallen: bool
    message: str
    reference: float | None = None
    recent: float | None = None
    p: float | None = Field(default=None, description="One-sided Mann-Whitney test over intervals.")


def fallen(intervals: Sequence[Interval], *, share: float = 0.05, alpha: float = 0.001) -> Fall:
    """Compare the last intervals with all before.

    A fall needs both: by rank the recent intervals lie below the earlier ones (the intervals, not the rounds, are the
    units, since rounds of one hour resemble each other), and their pooled acceptance, counted as drafts accepted per
    round, lies lower by `share`. `alpha` is small because the question is asked at every look.
    """
    from scipy.stats import mannwhitneyu

    if len(intervals) < RECENT + REFERENCE:
        return Fall(fallen=False, message=f"{len(intervals)} intervals so far, {RECENT + REFERENCE} are needed for a comparison")
    before, recent = intervals[:-RECENT], intervals[-RECENT:]
    p = float(mannwhitneyu([i.accept_length for i in recent], [i.accept_length for i in before], alternative="less").pvalue)
    usual, now = _pooled(before), _pooled(recent)
    low = now - 1 < (1 - share) * (usual - 1)
    found = f"acceptance {now:.3f} in the last {RECENT} intervals, {usual:.3f} in the {len(before)} before (p = {p:.2g})"
    verdict = "fell for good: " if low and p < alpha else "as before: "
    return Fall(fallen=low and p < alpha, message=verdict + found, reference=usual, recent=now, p=p)


def _pooled(intervals: Sequence[Interval]) -> float:
    weights = np.array([i.rounds for i in intervals])
    return float((np.array([i.accept_length for i in intervals]) * weights).sum() / weights.sum())
