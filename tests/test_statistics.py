"""Intervals hold what they promise."""

import numpy as np
import pytest

from tasks.statistics import ratio_of_repeats, ratio_of_sums


def test_ratio_covers_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for seed in range(100):
        sizes = rng.integers(20, 100, 40)
        hits += 0.3 in ratio_of_sums(rng.binomial(sizes, 0.3), sizes, seed=seed, draws=500)
    assert hits >= 88


def test_ratio_refuses_what_has_none() -> None:
    with pytest.raises(ValueError, match="no ratio"):
        ratio_of_sums([1], [0])


def test_few_units_still_cover_the_truth() -> None:
    """Ten prompts are all that a benchmark has: plain percentiles would hold the truth in 88% of cases."""
    rng = np.random.default_rng(1)
    times = rng.lognormal(0, 0.05, (200, 2, 10))
    assert sum(1.0 in ratio_of_sums(one, other, seed=seed, draws=1000) for seed, (one, other) in enumerate(times)) >= 183


def test_repeats_of_fixed_units_cover_the_truth() -> None:
    """Units may differ as they like: only what varies between repeats widens the interval."""
    rng = np.random.default_rng(2)
    held, widths = 0, []
    for _ in range(300):
        sizes = rng.lognormal(0, 0.3, 14)
        tops, bottoms = (rng.lognormal(np.log(sizes), 0.06, (3, 14)).T.tolist() for _ in range(2))
        found = ratio_of_repeats(tops, bottoms)
        held += 1.0 in found
        widths.append(found.high - found.low)
    assert 0.92 <= held / 300 <= 0.98
    assert max(widths) < 0.25


def test_repeats_refuse_what_was_not_repeated() -> None:
    with pytest.raises(ValueError, match="none of them repeated"):
        ratio_of_repeats([[1.0], [2.0]], [[1.0], [2.0]])
