"""The benchmark against servers that really decode, with seconds that are computed: what is true is known."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from tasks.benchmark import Benchmark, CachedChoice, Prediction, benchmark_drafter
from tasks.benchmark.cost import RoundCost, worth_a_start
from tasks.config import BenchmarkConfig
from tasks.report import Silent
from tasks.statistics import Interval
from tasks.verdict import BadInput, Check, MachineTrouble, Outcome, ProofFailed
from tests.benchmark.decoder import Answer, Machine, Server, decode, predict

LENGTH = 40


def make_prompts(count: int, seed: int = 0) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(50) for _ in range(draw.randrange(8, 30))] for _ in range(count)]


def measure(machine: Machine, *, prompts: int = 10, given: dict[str, Any] | None = None, seed: int = 1, **config: Any) -> Benchmark:
    settings = BenchmarkConfig.model_validate({"output_tokens": LENGTH, "prompts": prompts, **config})
    texts = make_prompts(prompts, seed)
    arguments: dict[str, Any] = {
        "prompts": texts,
        "predicted": {steps: predict(texts, settings.output_tokens, steps, machine.skill) for steps in settings.steps},
        "start": machine.start,
        "dtype": "float32",
        "served_tolerance": 0.05,
        "choice": None,
        "seed": seed,
        "report": Silent(),
        **(given or {}),
    }
    return benchmark_drafter(settings, **arguments)


def check_of(result: Benchmark, name: str) -> Check:
    return next(check for check in result.checks if check.name == name)


def bad(result: Benchmark) -> dict[str, tuple[str, str | None]]:
    return {check.name: (check.verdict, check.kind) for check in result.checks if check.verdict is not Outcome.PASS}


def test_a_healthy_drafter_is_measured_as_it_is() -> None:
    machine = Machine()
    result = measure(machine)
    assert bad(result) == {}
    rounds = sum(len(decode(p, LENGTH, result.steps, machine.skill)[1]) for p in make_prompts(10, 1))
    cost = 1 + machine.overhead + machine.slope * result.steps
    true = sum(0.001 * len(p) + 0.05 * (LENGTH - 1) for p in make_prompts(10, 1)) / (
        sum(0.001 * len(p) for p in make_prompts(10, 1)) + 0.05 * cost * rounds
    )
    assert true in result.speedup
    assert 1.0 in result.noise
    assert (result.verify_rounds, result.failures) == (3 * rounds, 0)
    assert result.accept_length == pytest.approx(result.predicted_accept_length)
    assert result.identical == result.compared >= 30
    assert result.baseline_tpot == pytest.approx(0.05, rel=0.03)
    assert result.spec_tok_s / result.baseline_tok_s == pytest.approx(result.speedup.value)
    assert check_of(result, "served as predicted").numbers["answers_equal_by_count"] == 30


def test_every_request_is_kept_and_pairs_are_balanced() -> None:
    result = measure(Machine())
    final = [row for row in result.rows if row.phase == "final"]
    assert len(final) == 2 * 3 * 10
    firsts = [final[index].server for index in range(0, len(final), 2)]
    assert all({final[i].server, final[i + 1].server} == {"plain", "speculative"} for i in range(0, len(final), 2))
    assert all(final[i].prompt == final[i + 1].prompt for i in range(0, len(final), 2))
    assert firsts.count("plain") == 15
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


@pytest.mark.parametrize(("skill", "slope", "best"), [(0.95, 0.03, 4), (0.3, 0.3, 1)])
def test_the_best_draft_length_is_found_and_the_hopeless_are_not_started(skill: float, slope: float, best: int) -> None:
    machine = Machine(skill=skill, slope=slope)
    result = measure(machine)
    assert result.steps == best
    ruled_out = [candidate.steps for candidate in result.candidates if candidate.ruled_out]
    assert ruled_out
    assert not set(ruled_out) & set(machine.started)
    assert {candidate.steps for candidate in result.candidates} == {1, 2, 3, 4}


def test_a_best_one_that_was_stopped_is_started_and_warmed_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.benchmark.explore.worth_a_start", lambda predicted, best: True)
    machine = Machine()
    result = measure(machine)
    assert sorted(k for k in machine.started if k) == sorted([1, 2, 3, 4, result.steps])
    assert not any(candidate.ruled_out for candidate in result.candidates)
    warm_up = [row for row in result.rows if row.phase == "warm-up" and row.steps == result.steps and row.server == "speculative"]
    assert len(warm_up) == 2 * BenchmarkConfig().warmup_prompts
    assert bad(result) == {}


def test_an_earlier_choice_needs_no_exploring() -> None:
    first = measure(Machine())
    machine = Machine(seed=3)
    again = measure(machine, given={"choice": first.choice})
    assert sorted(machine.started, key=str) == [first.steps, None]
    assert again.candidates == first.candidates
    assert not [row for row in again.rows if row.phase == "explore"]
    assert CachedChoice.model_validate_json(first.choice.model_dump_json()) == first.choice


def test_groups_at_a_higher_concurrency() -> None:
    result = measure(Machine(), prompts=22, concurrency=4)
    assert bad(result) == {}
    assert {row.prompt for row in result.rows} == set(range(20))  # 2 are left over
    assert result.baseline_tok_s > 3 * 20  # four at a time


class _Faulty(Server):
    """Changes an answer of the speculative server on its way."""

    def generate(self, input_ids: Any, max_new_tokens: int) -> Answer:
        answer = super().generate(input_ids, max_new_tokens)
        return self.change(answer) if self.steps else answer

    def change(self, answer: Answer) -> Answer:
        raise NotImplementedError


class _FakesAcceptance(_Faulty):
    def change(self, answer: Answer) -> Answer:
        return replace(answer, right_drafts=answer.verify_rounds * ((self.steps or 0) + 1))


class _AnswersShort(_Faulty):
    def change(self, answer: Answer) -> Answer:
        return replace(answer, tokens=answer.tokens[:-1])


class _KeepsItsCache(_Faulty):
    def flush_cache(self) -> None:
        if not self.steps:
            super().flush_cache()

    def change(self, answer: Answer) -> Answer:
        return answer


class _Diverges(_Faulty):
    def change(self, answer: Answer) -> Answer:
        return replace(answer, tokens=[*answer.tokens[:-1], 49 - answer.tokens[-1]])


class _FailsNowAndThen(_Faulty):
    def change(self, answer: Answer) -> Answer:
        if self.requests % 10 == 0:
            raise MachineTrouble("status 500")
        return answer


class _AcceptsLess(_Faulty):
    """Served worse than trained: a third of the right drafts is lost, as rounds that bring one token less."""

    def change(self, answer: Answer) -> Answer:
        lost = answer.right_drafts // 3
        return replace(answer, right_drafts=answer.right_drafts - lost, verify_rounds=answer.verify_rounds + lost)


class _AcceptsMore(_Faulty):
    def change(self, answer: Answer) -> Answer:
        return replace(answer, right_drafts=(self.steps or 0) * answer.verify_rounds)


class _Decays(_Faulty):
    def change(self, answer: Answer) -> Answer:
        lost = min(answer.right_drafts, self.requests // 8)
        return replace(answer, right_drafts=answer.right_drafts - lost, verify_rounds=answer.verify_rounds + lost)


class _DoesNotSpeculate(_Faulty):
    def change(self, answer: Answer) -> Answer:
        return replace(answer, verify_rounds=0, right_drafts=0, histogram=())


INVALID = (Outcome.INVALID, "invalid-measurement")


@pytest.mark.parametrize(
    ("server", "name", "outcome"),
    [
        (_FakesAcceptance, "acceptance at most steps + 1", INVALID),
        (_AnswersShort, "equal output lengths", INVALID),
        (_KeepsItsCache, "cache flushed, equal hits", INVALID),
        (_FailsNowAndThen, "every request answered", INVALID),
        (_Diverges, "lossless", (Outcome.FAIL, "greedy-divergence")),
        (_AcceptsLess, "served as predicted", (Outcome.FAIL, "layer-boundaries")),
        (_AcceptsMore, "served as predicted", (Outcome.FAIL, "launch-flags")),
        (_Decays, "steady acceptance", (Outcome.WARN, "runtime-interaction")),
        (_Decays, "served as predicted", (Outcome.FAIL, "runtime-interaction")),
    ],
)
def test_each_fault_has_its_name(server: type[Server], name: str, outcome: tuple[str, str]) -> None:
    result = measure(Machine(server_class=server))
    assert bad(result)[name] == outcome


def test_failed_requests_are_counted_and_their_pairs_not_timed() -> None:
    result = measure(Machine(server_class=_FailsNowAndThen))
    assert result.failures == sum(row.error is not None for row in result.rows) > 0
    assert len(result.rows) == sum(
        count for count in check_of(result, "every request answered").numbers.values() if count == len(result.rows)
    )
    assert 1.0 < result.speedup.low < result.speedup.high < 2.5


def test_a_divergence_in_lower_precision_is_a_rate() -> None:
    result = measure(Machine(server_class=_Diverges), given={"dtype": "bfloat16"})
    check = check_of(result, "lossless")
    assert (check.verdict, check.numbers["identical"]) == (Outcome.WARN, 0)
    assert check.numbers["first"][0]["position"] == LENGTH - 1


def test_a_noisy_machine_measures_nothing() -> None:
    assert bad(measure(Machine(noise=0.6)))["quiet machine"] == INVALID


@pytest.mark.parametrize(("given", "tokens"), [({"prompts": 3}, 3), ({"output_tokens": 8}, 10)])
def test_too_few_tokens_or_prompts(given: dict[str, int], tokens: int) -> None:
    assert bad(measure(Machine(), **given))["enough tokens"] == INVALID


def test_a_server_that_was_not_warmed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    from tasks.benchmark.measure import Measurement, Pair

    def cold(self: Measurement, pair: Pair, groups: Any) -> None:
        for group in groups:
            self._send(pair, "plain", "first-token", 0, group, 1)
            self._send(pair, "speculative", "first-token", 0, group, 1)

    monkeypatch.setattr(Measurement, "prepare", cold)
    assert bad(measure(Machine()))["warmed up"] == INVALID


def test_a_server_that_does_not_speculate_ends_the_exploring() -> None:
    with pytest.raises(ProofFailed) as failed:
        measure(Machine(server_class=_DoesNotSpeculate))
    assert failed.value.verdict.kind == "launch-flags"
    result = measure(Machine(server_class=_DoesNotSpeculate), given={"choice": CachedChoice(steps=2, candidates=[])})
    assert bad(result)["speculation where asked"] == (Outcome.FAIL, "launch-flags")


def test_answers_of_one_token_measure_nothing() -> None:
    with pytest.raises(ProofFailed, match="longer answers") as failed:
        measure(Machine(), output_tokens=1, given={"predicted": {k: Prediction(rounds=[1] * 10, right=[0] * 10) for k in (1, 2, 3, 4)}})
    assert failed.value.verdict.kind == "invalid-measurement"


def test_a_hiccup_at_the_first_token_does_not_turn_seconds_negative() -> None:
    class Hiccups(Server):
        def generate(self, input_ids: Any, max_new_tokens: int) -> Answer:
            answer = super().generate(input_ids, max_new_tokens)
            return replace(answer, seconds=100.0) if max_new_tokens == 1 else answer

    result = measure(Machine(server_class=Hiccups))
    assert result.baseline_tpot > 0
    assert result.speedup.low > 1


def test_a_server_that_answers_nothing_is_the_machines_trouble() -> None:
    class Dead(_Faulty):
        def change(self, answer: Answer) -> Answer:
            raise MachineTrouble("connection refused")

    machine = Machine(server_class=Dead)
    with pytest.raises(MachineTrouble, match="connection refused"):
        measure(machine)
    assert machine.running == []


def test_a_server_that_dies_ends_the_benchmark() -> None:
    class Dies(_Faulty):
        def change(self, answer: Answer) -> Answer:
            raise MachineTrouble("connection reset")

        def check_alive(self) -> None:
            if self.requests > 1:
                raise MachineTrouble("the server died with signal 9")

    with pytest.raises(MachineTrouble, match="signal 9"):
        measure(Machine(server_class=Dies))


@pytest.mark.parametrize("given", [{"prompts": []}, {"predicted": {}}, {"choice": CachedChoice(steps=7, candidates=[])}])
def test_what_cannot_be_measured_is_refused_before_a_start(given: dict[str, Any]) -> None:
    machine = Machine()
    with pytest.raises(BadInput):
        measure(machine, given=given)
    assert machine.started == []


def test_plain_against_itself_holds_one() -> None:
    """Speculation without gain or cost is the plain server again: the interval has to say so."""
    held, widths = 0, []
    for seed in range(20):
        machine = Machine(skill=0.0, overhead=0.0, slope=0.0, noise=0.03, seed=seed)
        result = measure(machine, seed=seed, given={"choice": CachedChoice(steps=1, candidates=[])})
        held += 1.0 in result.speedup
        widths.append(max(result.speedup.high - 1, 1 - result.speedup.low))
    assert held >= 18
    assert max(widths) < 0.05


def test_the_cost_model_learns() -> None:
    cost = RoundCost()
    before = cost.of(3)
    cost.learn(1, Interval(value=1.3, low=1.28, high=1.32))
    after_one = cost.of(3)
    cost.learn(2, Interval(value=1.4, low=1.38, high=1.42))
    after_two = cost.of(3)
    assert before.high - before.low > after_one.high - after_one.low > after_two.high - after_two.low
    assert 1.5 in after_two
    assert cost.of(1).value == pytest.approx(1.3, abs=0.02)


def test_what_is_worth_a_start() -> None:
    predicted = Interval(value=1.2, low=1.1, high=1.3)
    assert worth_a_start(predicted, None)
    assert worth_a_start(predicted, 1.25)
    assert not worth_a_start(predicted, 1.29)
