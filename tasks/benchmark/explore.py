"""Which draft length serves fastest: as few server starts as the predictions allow."""

from __future__ import annotations

from collections.abc import Mapping

from tasks.benchmark import figures
from tasks.benchmark.cost import RoundCost, worth_a_start
from tasks.benchmark.measure import Measurement
from tasks.benchmark.results import CachedChoice, Candidate, Prediction
from tasks.benchmark.servers import Servers
from tasks.statistics import Interval


class Explorer:
    """Measures draft lengths in the order of their predicted speed-up, until none is left that could be the best."""

    def __init__(self, measurement: Measurement, predicted: Mapping[int, Prediction], servers: Servers, seed: int) -> None:
        self._measurement, self._servers, self._seed = measurement, servers, seed
        self._accept = {steps: predicted[steps].accept_length for steps in sorted(set(measurement.config.steps))}
        self._cost = RoundCost()
        self._measured: dict[int, Candidate] = {}
        self._reached: dict[int, float] = {}

    def explore(self) -> CachedChoice:
        """Raises ProofFailed when a speculative server does not speculate, MachineTrouble when one answers nothing."""
        while (steps := self._most_promising()) is not None:
            self._measure(steps)
        best = max(self._reached, key=lambda steps: self._reached[steps])
        return CachedChoice(steps=best, candidates=[self._measured.get(steps) or self._ruled_out(steps, best) for steps in self._accept])

    def _predict(self, steps: int) -> Interval:
        return self._cost.speedup(steps, self._accept[steps])

    def _most_promising(self) -> int | None:
        best = max(self._reached.values(), default=None)
        left = [steps for steps in self._accept if steps not in self._measured and worth_a_start(self._predict(steps), best)]
        return max(left, key=lambda steps: self._predict(steps).value, default=None)

    def _measure(self, steps: int) -> None:
        """Acceptance is predicted from all prompts, exploring sees few: it is asked only for what a round costs."""
        measurement, predicted = self._measurement, self._predict(steps)
        groups = range(measurement.groups)[: -(-measurement.config.explore_prompts // measurement.config.concurrency)]
        pair = self._servers.pair(steps)
        measurement.prepare(pair, groups)
        measurement.pairs(pair, "explore", 1, groups)
        pairs = figures.answered(measurement.rows, "explore", steps)
        cost = figures.round_cost(pairs, measurement.rows, self._seed)
        self._cost.learn(steps, cost)
        self._reached[steps] = self._accept[steps] / max(1.0, cost.value)  # noise aside, no round is cheaper than a plain step
        self._measured[steps] = Candidate(
            steps=steps,
            predicted_accept_length=self._accept[steps],
            predicted_speedup=predicted,
            round_cost=cost,
            measured_speedup=figures.speedup(pairs, self._seed),
        )
        measurement.report.say(
            f"{steps} steps: {self._accept[steps]:.2f} tokens a round that costs {cost.value:.2f} plain steps: {self._reached[steps]:.3f}"
        )

    def _ruled_out(self, steps: int, best: int) -> Candidate:
        predicted = self._predict(steps)
        why = f"at most {predicted.high:.3f} predicted, {self._reached[best]:.3f} reached with {best} steps"
        return Candidate(steps=steps, predicted_accept_length=self._accept[steps], predicted_speedup=predicted, ruled_out=why)
