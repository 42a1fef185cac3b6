"""What a speculative round costs, in plain decoding steps, and so which draft lengths are worth a server start.

A round with K draft steps verifies K + 1 tokens and drafts K times. Its cost relative to a plain step is taken as
`1 + overhead + K * slope`: the overhead is the drafter's extension and the round's bookkeeping, the slope is one more
verified token and one more draft step. Both have a broad prior, which the measured draft lengths narrow.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tasks.statistics import Interval

# Mean and standard deviation of (overhead, slope). SmolLM2-135M on two CPU cores: rounds of 1.17 and 1.69 steps at
# K = 1 and 3 in plain torch, 1.33 and 1.51 in SGLang 0.5.23. A GPU that waits for memory lies about one deviation lower.
_PRIOR_MEAN = np.array([0.15, 0.12])
_PRIOR_DEVIATION = np.array([0.10, 0.08])

# A measured cost is not trusted further than this: exploring sees few prompts.
_LEAST_DEVIATION = 0.01

# A further start costs about a minute and two gigabytes; gains under this drown in the noise of the final pairs.
_WORTH_A_START = 1.02


@dataclass
class RoundCost:
    """Bayesian linear regression of the relative round cost on the draft length; normal, in closed form."""

    _precision: np.ndarray = field(default_factory=lambda: np.diag(_PRIOR_DEVIATION**-2.0))
    _weighted: np.ndarray = field(default_factory=lambda: _PRIOR_MEAN * _PRIOR_DEVIATION**-2.0)

    def learn(self, steps: int, cost: Interval) -> None:
        """Take in a measured relative cost; its 95% interval says how far it is trusted."""
        deviation = max((cost.high - cost.low) / (2 * 1.96), _LEAST_DEVIATION)
        row = np.array([1.0, steps])
        self._precision = self._precision + np.outer(row, row) / deviation**2
        self._weighted = self._weighted + row * (cost.value - 1) / deviation**2

    def of(self, steps: int) -> Interval:
        """The expected relative cost, one standard deviation to each side; never below one plain step."""
        covariance = np.linalg.inv(self._precision)
        row = np.array([1.0, steps])
        mean = 1 + float(row @ covariance @ self._weighted)
        deviation = float(np.sqrt(row @ covariance @ row))
        return Interval(value=max(1.0, mean), low=max(1.0, mean - deviation), high=max(1.0, mean + deviation), level=0.68)

    def speedup(self, steps: int, accept_length: float) -> Interval:
        """Tokens per round over cost per round: the decoding speed-up, one standard deviation to each side."""
        cost = self.of(steps)
        return Interval(value=accept_length / cost.value, low=accept_length / cost.high, high=accept_length / cost.low, level=0.68)


def worth_a_start(predicted: Interval, best: float | None) -> bool:
    """Whether a draft length could beat the best measured one (None = nothing measured yet) by its uncertainty."""
    return best is None or predicted.high > best * _WORTH_A_START
