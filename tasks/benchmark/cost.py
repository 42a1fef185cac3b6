"""What a speculative round costs, in plain decoding steps, and so which settings are worth a server start.

A round drafts K steps and verifies n tokens. Its cost relative to a plain step is taken as
`1 + overhead + K * draft + (n - 1) * verify`: the overhead is the drafter's extension and the round's bookkeeping. Each
has a broad prior, which the measured settings narrow; chains alone (n = K + 1) tell only the sum of the two slopes.
"""

from __future__ import annotations

import numpy as np

from tasks.benchmark.setting import Setting
from tasks.statistics import Interval

# Mean and standard deviation of (overhead, draft, verify). SmolLM2-135M on two CPU cores: rounds of 1.17 and 1.69 steps
# at K = 1 and 3 in plain torch, 1.33 and 1.51 in SGLang 0.5.23. A GPU that waits for memory lies about one deviation lower.
_PRIOR_MEAN = np.array([0.15, 0.06, 0.06])
_PRIOR_DEVIATION = np.array([0.10, 0.06, 0.06])

# A measured cost is not trusted further than this: exploring sees few prompts.
_LEAST_DEVIATION = 0.01

# A further start costs about a minute and two gigabytes; gains under this drown in the noise of the final pairs.
_WORTH_A_START = 1.02


class RoundCost:
    """Bayesian linear regression of the relative round cost at one concurrency; normal, in closed form.

    The more requests at once, the less a step waits for memory and the more each token counts: the prior widens.
    """

    def __init__(self, concurrency: int = 1) -> None:
        weight = (_PRIOR_DEVIATION * np.sqrt(concurrency)) ** -2.0
        self._precision, self._weighted = np.diag(weight), _PRIOR_MEAN * weight

    def learn(self, setting: Setting, cost: Interval) -> None:
        """Take in a measured relative cost; its 95% interval says how far it is trusted."""
        deviation = max((cost.high - cost.low) / (2 * 1.96), _LEAST_DEVIATION)
        row = _row(setting)
        self._precision = self._precision + np.outer(row, row) / deviation**2
        self._weighted = self._weighted + row * (cost.value - 1) / deviation**2

    def of(self, setting: Setting) -> Interval:
        """The expected relative cost, one standard deviation to each side; never below one plain step."""
        covariance = np.linalg.inv(self._precision)
        row = _row(setting)
        mean = 1 + float(row @ covariance @ self._weighted)
        deviation = float(np.sqrt(row @ covariance @ row))
        return Interval(value=max(1.0, mean), low=max(1.0, mean - deviation), high=max(1.0, mean + deviation), level=0.68)

    def speedup(self, setting: Setting, accept_length: float) -> Interval:
        """Tokens per round over cost per round: the decoding speed-up, one standard deviation to each side."""
        cost = self.of(setting)
        return Interval(value=accept_length / cost.value, low=accept_length / cost.high, high=accept_length / cost.low, level=0.68)


def _row(setting: Setting) -> np.ndarray:
    return np.array([1.0, setting.steps, setting.draft_tokens - 1])


def worth_a_start(predicted: Interval, best: float | None) -> bool:
    """Whether a setting could beat the best measured one (None = nothing measured yet) by its uncertainty."""
    return best is None or predicted.high > best * _WORTH_A_START
