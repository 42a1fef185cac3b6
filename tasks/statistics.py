"""Intervals. Every ratio that decides something comes with the counts it was made of and an interval."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict


class Interval(BaseModel):
    """A value with its interval at `level`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: float
    low: float
    high: float
    level: float = 0.95

    def __contains__(self, number: float) -> bool:
        return self.low <= number <= self.high

    @property
    def half_width(self) -> float:
        """As a share of the value: 0.05 is ±5%."""
        return (self.high - self.low) / 2 / self.value


def ratio_of_sums(
    numerators: Sequence[float], denominators: Sequence[float], *, level: float = 0.95, seed: int = 0, draws: int = 2000
) -> Interval:
    """Bootstrap interval of sum(numerators) / sum(denominators), resampled by unit (a conversation, a prompt).

    The units are resampled whole, so that what repeats within one does not narrow the interval. With few units the
    percentiles lie further out, as Student's t does (the "expanded percentile interval" of Hesterberg, The American
    Statistician 69, 2015): plain percentiles of 10 units hold the truth in 88% of cases, these in 94%.
    Raises ValueError when the lengths differ, are zero, or the denominators sum to zero.
    """
    top, bottom = np.asarray(numerators, dtype=float), np.asarray(denominators, dtype=float)
    if top.shape != bottom.shape or top.size == 0 or bottom.sum() == 0:
        raise ValueError(f"no ratio of {top.size} numerators to {bottom.size} denominators that sum to {bottom.sum()}")
    tail = _expanded_tail(top.size, level)
    picks = np.random.default_rng(seed).integers(0, top.size, (draws, top.size))
    drawn = bottom[picks].sum(1)
    ratios = top[picks].sum(1)[drawn > 0] / drawn[drawn > 0]
    low, high = np.quantile(ratios, [tail, 1 - tail])
    return Interval(value=float(top.sum() / bottom.sum()), low=float(low), high=float(high), level=level)


def _expanded_tail(units: int, level: float) -> float:
    """Probability beyond each end of a percentile interval over `units` resampled units; 0 for a single one."""
    from scipy.stats import norm, t

    return float(norm.cdf(-np.sqrt(units / (units - 1)) * t.ppf((1 + level) / 2, units - 1))) if units > 1 else 0.0


def ratio_of_repeats(numerators: Sequence[Sequence[float]], denominators: Sequence[Sequence[float]], *, level: float = 0.95) -> Interval:
    """Sum of mean numerators / sum of mean denominators over units that stay as they are: only repeats of them vary.

    `numerators[u]` and `denominators[u]` hold the repeats of unit u, positive numbers, the r-th of both measured together: what
    disturbs both falls out. The relative spread of their ratio is taken to be the same everywhere, so it is pooled over units.
    The interval is Student's, on the logarithm. Raises ValueError when no unit was repeated, or the two sides differ in length.
    """
    from scipy.stats import t

    tops, bottoms = [np.asarray(unit, dtype=float) for unit in numerators], [np.asarray(unit, dtype=float) for unit in denominators]
    pools = [np.log(top / bottom) for top, bottom in zip(tops, bottoms, strict=True)]
    freedom = sum(len(pool) - 1 for pool in pools)
    if freedom < 1:
        raise ValueError(f"{len(pools)} units, none of them repeated")
    variance = sum(float(((pool - pool.mean()) ** 2).sum()) for pool in pools) / freedom
    per_unit = np.array([1 / len(pool) for pool in pools])
    top_means, bottom_means = np.array([top.mean() for top in tops]), np.array([bottom.mean() for bottom in bottoms])
    share = (top_means / top_means.sum() + bottom_means / bottom_means.sum()) / 2
    half = float(t.ppf((1 + level) / 2, freedom) * np.sqrt(variance * (share**2 * per_unit).sum()))
    value = float(top_means.sum() / bottom_means.sum())
    return Interval(value=value, low=value * float(np.exp(-half)), high=value * float(np.exp(half)), level=level)
