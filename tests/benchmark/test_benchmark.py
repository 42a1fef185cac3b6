"""The benchmark against servers that really decode, with seconds that are computed: what is true is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import permutations
from typing import Any

import pytest

from tasks.benchmark import CachedChoice, Champion, Prediction, Setting
from tasks.config import BenchmarkConfig
from tasks.report import Silent
from tasks.verdict import BadInput, MachineTrouble, Outcome, ProofFailed
from tests.benchmark.decoder import Answer, Machine, Server, decode
from tests.benchmark.faulty import (
    AcceptsLess,
    AcceptsMore,
    AnswersShort,
    Decays,
    Diverges,
    DoesNotSpeculate,
    FailsNowAndThen,
    FakesAcceptance,
    Faulty,
    KeepsItsCache,
)
from tests.benchmark.measuring import LENGTH, bad, check_of, chosen, make_prompts, measure


class Counts(Silent):
    """Keeps how many of how many final pairs were told of."""

    def __init__(self) -> None:
        self.final: list[tuple[float, float]] = []

    def progress(self, done: float, total: float, unit: str, measured: Mapping[str, float] | None = None) -> None:
        if unit == "final pairs":
            self.final.append((done, total))


def test_a_healthy_drafter_is_measured_as_it_is() -> None:
    machine = Machine()
    result = measure(machine)
    assert bad(result) == {}
    rounds = sum(len(decode(p, LENGTH, result.setting.steps, machine.skill)[1]) for p in make_prompts(10, 1))
    cost = 1 + machine.overhead + machine.slope * result.setting.steps
    true = sum(0.001 * len(p) + 0.05 * (LENGTH - 1) for p in make_prompts(10, 1)) / (
        sum(0.001 * len(p) for p in make_prompts(10, 1)) + 0.05 * cost * rounds
    )
    assert true in result.speedup
    point = result.point
    assert 1.0 in point.noise
    assert point.speedup.value == pytest.approx(point.timing.value)
    assert point.speedup.low < point.timing.low < point.timing.high < point.speedup.high
    assert (point.acceptance.verify_rounds, result.failures) == (3 * rounds, 0)
    assert sum(point.acceptance.histogram) == 3 * rounds
    assert point.acceptance.accept_length == pytest.approx(point.predicted_accept_length)
    assert point.identical == point.compared >= 30
    assert point.plain.tpot == pytest.approx(0.05, rel=0.03)
    assert point.plain.ttft.mean == pytest.approx(sum(0.001 * len(p) for p in make_prompts(10, 1)) / 10, rel=0.03)
    assert point.plain.end_to_end.p50 <= point.plain.end_to_end.p90 <= point.plain.end_to_end.p99
    assert point.speculative.output_tok_s / point.plain.output_tok_s == pytest.approx(result.speedup.value)
    assert point.plain.requests_s == pytest.approx(point.plain.output_tok_s / LENGTH)
    assert check_of(result, "served as predicted").numbers["answers_equal_by_count"] == 30


def test_every_request_is_kept_and_pairs_are_balanced() -> None:
    result = measure(Machine())
    final = [row for row in result.rows if row.phase == "final"]
    assert len(final) == 3 * 3 * 10
    pairs = [final[i : i + 3] for i in range(0, len(final), 3)]
    assert all(len({row.prompt for row in pair}) == 1 for pair in pairs)
    orders = Counter(tuple((row.server, row.again) for row in pair) for pair in pairs)
    assert set(orders) == set(permutations([("plain", False), ("plain", True), ("speculative", False)]))
    assert set(orders.values()) == {5}
    assert [row.prompt for row in final if row.repeat == 0] != [row.prompt for row in final if row.repeat == 1]


def test_the_seed_decides_the_order() -> None:
    orders = [
        [(row.server, row.prompt) for row in measure(Machine(seed=clock), seed=seed).rows] for clock, seed in [(0, 1), (5, 1), (0, 2)]
    ]
    assert orders[0] == orders[1] != orders[2]


def test_two_servers_at_most_and_none_left() -> None:
    machine = Machine()
    measure(machine)
    assert machine.most_running == 2
    assert machine.running == []


def test_a_best_one_that_was_stopped_is_started_and_warmed_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.benchmark.explore.worth_a_start", lambda predicted, best: True)
    machine = Machine()
    result = measure(machine)
    assert sorted(k for k in machine.started if k) == sorted([1, 2, 3, 4, result.setting.steps])
    assert not any(candidate.ruled_out for candidate in result.candidates)
    warm_up = [row for row in result.rows if row.phase == "warm-up" and row.setting == result.setting and row.server == "speculative"]
    assert len(warm_up) == 2 * BenchmarkConfig().warmup_prompts
    assert bad(result) == {}


def test_an_earlier_choice_needs_no_exploring() -> None:
    first = measure(Machine())
    machine = Machine(seed=3)
    again = measure(machine, given={"choice": first.choice})
    assert sorted(machine.started, key=str) == [first.setting.steps, None]
    assert again.candidates == first.candidates
    assert not [row for row in again.rows if row.phase == "explore"]
    assert CachedChoice.model_validate_json(first.choice.model_dump_json()) == first.choice


def test_groups_at_a_higher_concurrency() -> None:
    result = measure(Machine(), prompts=22, concurrency=4)
    assert bad(result) == {}
    assert {row.prompt for row in result.rows} == set(range(20))  # 2 are left over
    assert result.point.plain.output_tok_s > 3 * 20  # four at a time


INVALID = (Outcome.INVALID, "invalid-measurement")


@pytest.mark.parametrize(
    ("server", "name", "outcome"),
    [
        (FakesAcceptance, "acceptance at most steps + 1", INVALID),
        (AnswersShort, "equal output lengths", INVALID),
        (KeepsItsCache, "cache flushed, equal hits", INVALID),
        (FailsNowAndThen, "every request answered", INVALID),
        (Diverges, "lossless", (Outcome.FAIL, "greedy-divergence")),
        (AcceptsLess, "served as predicted", (Outcome.FAIL, "layer-boundaries")),
        (AcceptsMore, "served as predicted", (Outcome.FAIL, "launch-flags")),
        (Decays, "steady acceptance", (Outcome.WARN, "runtime-interaction")),
        (Decays, "served as predicted", (Outcome.FAIL, "runtime-interaction")),
    ],
)
def test_each_fault_has_its_name(server: type[Server], name: str, outcome: tuple[str, str]) -> None:
    result = measure(Machine(server_class=server))
    assert bad(result)[name] == outcome


def test_failed_requests_are_counted_and_their_pairs_not_timed() -> None:
    result = measure(Machine(server_class=FailsNowAndThen))
    assert result.failures == sum(row.error is not None for row in result.rows) > 0
    assert len(result.rows) == sum(
        count for count in check_of(result, "every request answered").numbers.values() if count == len(result.rows)
    )
    assert 1.0 < result.speedup.low < result.speedup.high < 2.5


def test_a_divergence_in_lower_precision_is_a_rate() -> None:
    result = measure(Machine(server_class=Diverges), given={"dtype": "bfloat16"})
    check = check_of(result, "lossless")
    assert (check.verdict, check.numbers["identical"]) == (Outcome.WARN, 0)
    assert check.numbers["first"][0]["position"] == LENGTH - 1


def test_a_noisy_machine_measures_nothing() -> None:
    result = measure(Machine(noise=0.6))
    assert bad(result)["quiet machine"] == INVALID
    assert {row.repeat for row in result.rows if row.phase == "final"} == set(range(2 * BenchmarkConfig().repeats))  # it tried, and ended


@pytest.mark.parametrize("room", [None, True, False], ids=["no champion", "beside a champion", "in turns with one"])
def test_a_restless_machine_is_measured_for_longer(room: bool | None) -> None:
    champion = Champion(version="7", setting=Setting(steps=1), start=Machine(noise=0.12).start, has_room=lambda: bool(room))
    heard = Counts()
    result = measure(Machine(noise=0.12), given={"choice": chosen(2), "champion": None if room is None else champion, "report": heard})
    repeats = len({row.repeat for row in result.rows if row.phase == "final"})
    assert BenchmarkConfig().repeats < repeats <= 2 * BenchmarkConfig().repeats
    assert result.point.noise.half_width <= BenchmarkConfig().max_noise / 2
    assert 1.0 in result.point.noise
    assert [done for done, _ in heard.final] == list(range(1, 10 * repeats + 1))  # a further repeat is no new beginning
    assert all(done <= total for done, total in heard.final)
    assert heard.final[-1] == (10 * repeats, 10 * repeats)


@pytest.mark.parametrize(("given", "tokens"), [({"prompts": 3}, 3), ({"output_tokens": 8}, 10)])
def test_too_few_tokens_or_prompts(given: dict[str, int], tokens: int) -> None:
    assert bad(measure(Machine(), **given))["enough tokens"] == INVALID


def test_a_server_that_was_not_warmed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    from tasks.benchmark.measure import Measurement, Pair

    def cold(self: Measurement, pair: Pair, concurrency: int) -> None:
        return None

    monkeypatch.setattr(Measurement, "prepare", cold)
    assert bad(measure(Machine()))["warmed up"] == INVALID


def test_a_server_that_does_not_speculate_ends_the_exploring() -> None:
    with pytest.raises(ProofFailed) as failed:
        measure(Machine(server_class=DoesNotSpeculate))
    assert failed.value.verdict.kind == "launch-flags"
    result = measure(Machine(server_class=DoesNotSpeculate), given={"choice": chosen(2)})
    assert bad(result)["speculation where asked"] == (Outcome.FAIL, "launch-flags")


def test_answers_of_one_token_measure_nothing() -> None:
    with pytest.raises(ProofFailed, match="longer answers") as failed:
        measure(Machine(), output_tokens=1, given={"predicted": {Setting(steps=1): Prediction(rounds=[1] * 10, right=[0] * 10)}})
    assert failed.value.verdict.kind == "invalid-measurement"


def test_a_server_that_answers_nothing_is_the_machines_trouble() -> None:
    class Dead(Faulty):
        def change(self, answer: Answer) -> Answer:
            raise MachineTrouble("connection refused")

    machine = Machine(server_class=Dead)
    with pytest.raises(MachineTrouble, match="connection refused"):
        measure(machine)
    assert machine.running == []


def test_a_server_that_dies_ends_the_benchmark() -> None:
    class Dies(Faulty):
        def change(self, answer: Answer) -> Answer:
            raise MachineTrouble("connection reset")

        def check_alive(self) -> None:
            if self.requests > 1:
                raise MachineTrouble("the server died with signal 9")

    with pytest.raises(MachineTrouble, match="signal 9"):
        measure(Machine(server_class=Dies))


@pytest.mark.parametrize("given", [{"prompts": []}, {"predicted": {}}, {"choice": CachedChoice(settings={2: Setting(steps=1)})}])
def test_what_cannot_be_measured_is_refused_before_a_start(given: dict[str, Any]) -> None:
    machine = Machine()
    with pytest.raises(BadInput):
        measure(machine, given=given)
    assert machine.started == []
