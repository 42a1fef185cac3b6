"""Which setting serves fastest, at each concurrency: as few server starts as the predictions allow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tasks.benchmark import figures
from tasks.benchmark.cost import RoundCost, worth_a_start
from tasks.benchmark.measure import Measurement, Pair
from tasks.benchmark.results import CachedChoice, Candidate, Explored, Prediction
from tasks.benchmark.servers import Servers
from tasks.benchmark.setting import Setting
from tasks.statistics import Interval


class Explorer:
    """Measures settings in the order of their predicted speed-up, until none is left that could be the best anywhere.

    A server that runs is measured at every concurrency: it is the start that costs. `concurrencies`: the deciding one first.
    """

    def __init__(
        self, measurement: Measurement, predicted: Mapping[Setting, Prediction], servers: Servers, concurrencies: Sequence[int], seed: int
    ) -> None:
        self._measurement, self._servers, self._concurrencies, self._seed = measurement, servers, concurrencies, seed
        self._accept = {setting: prediction.accept_length for setting, prediction in predicted.items()}
        self._cost = {concurrency: RoundCost(concurrency) for concurrency in concurrencies}
        self._reached: dict[int, dict[Setting, float]] = {concurrency: {} for concurrency in concurrencies}
        self._measured: dict[Setting, Candidate] = {}

    def explore(self) -> CachedChoice:
        """Raises ProofFailed when a speculative server does not speculate, MachineTrouble when one answers nothing."""
        while (setting := self._most_promising()) is not None:
            self._measure(setting)
        best = {concurrency: max(reached, key=lambda setting: reached[setting]) for concurrency, reached in self._reached.items()}
        return CachedChoice(
            settings=best, candidates=[self._measured.get(setting) or self._ruled_out(setting, best) for setting in self._accept]
        )

    def _predict(self, setting: Setting, concurrency: int) -> Interval:
        return self._cost[concurrency].speedup(setting, self._accept[setting])

    def _promising(self, setting: Setting) -> bool:
        return any(worth_a_start(self._predict(setting, c), max(self._reached[c].values(), default=None)) for c in self._concurrencies)

    def _most_promising(self) -> Setting | None:
        left = [setting for setting in self._accept if setting not in self._measured and self._promising(setting)]
        return max(left, key=lambda setting: self._predict(setting, self._concurrencies[0]).value, default=None)

    def _measure(self, setting: Setting) -> None:
        pair = self._servers.pair(setting)
        self._measured[setting] = Candidate(
            setting=setting,
            predicted_accept_length=self._accept[setting],
            explored=[self._measure_at(concurrency, setting, pair) for concurrency in self._concurrencies],
        )

    def _measure_at(self, concurrency: int, setting: Setting, pair: Pair) -> Explored:
        """Acceptance is predicted from all prompts, exploring sees few: it is asked only for what a round costs."""
        measurement, predicted = self._measurement, self._predict(setting, concurrency)
        groups = measurement.groups(concurrency)[: -(-measurement.config.explore_prompts // concurrency)]
        measurement.prepare(pair, concurrency)
        measurement.pairs(pair, "explore", [0], concurrency, groups)
        pairs = figures.answered(measurement.rows, "explore", setting, concurrency)
        cost = figures.round_cost(pairs, self._seed)
        self._cost[concurrency].learn(setting, cost)
        # Noise aside, no round is cheaper than a plain step.
        reached = self._reached[concurrency][setting] = self._accept[setting] / max(1.0, cost.value)
        measurement.report.say(
            f"{setting}, concurrency {concurrency}: {self._accept[setting]:.2f} tokens a round that costs {cost.value:.2f} plain steps: "
            f"{reached:.3f} (predicted {predicted.value:.3f})"
        )
        return Explored(
            concurrency=concurrency, predicted_speedup=predicted, round_cost=cost, measured_speedup=figures.speedup(pairs, self._seed)
        )

    def _ruled_out(self, setting: Setting, best: Mapping[int, Setting]) -> Candidate:
        explored = [Explored(concurrency=c, predicted_speedup=self._predict(setting, c)) for c in self._concurrencies]
        why = "; ".join(
            f"concurrency {found.concurrency}: at most {found.predicted_speedup.high:.3f} predicted, "
            f"{self._reached[found.concurrency][best[found.concurrency]]:.3f} reached with {best[found.concurrency]}"
            for found in explored
        )
        return Candidate(setting=setting, predicted_accept_length=self._accept[setting], explored=explored, ruled_out=why)
