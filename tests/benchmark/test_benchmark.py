"""The benchmark against servers that really decode, with seconds that are computed: what is true is known."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from tasks.benchmark import Benchmark, CachedChoice, Prediction, Setting, benchmark_drafter, render, settings_to_try
from tasks.benchmark.cost import RoundCost, worth_a_start
from tasks.config import BenchmarkConfig, DeployConfig
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
        "predicted": {Setting(steps=k): predict(texts, settings.output_tokens, k, machine.skill) for k in settings.steps},
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


def chosen(steps: int) -> CachedChoice:
    return CachedChoice(settings={1: Setting(steps=steps)})


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
    ruled_out = [candidate.setting.steps for candidate in result.candidates if candidate.ruled_out]
    assert ruled_out
    assert not set(ruled_out) & set(machine.started)
    assert {candidate.setting.steps for candidate in result.candidates} == {1, 2, 3, 4}


def test_a_best_one_that_was_stopped_is_started_and_warmed_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.benchmark.explore.worth_a_start", lambda predicted, best: True)
    machine = Machine()
    result = measure(machine)
    assert sorted(k for k in machine.started if k) == sorted([1, 2, 3, 4, result.steps])
    assert not any(candidate.ruled_out for candidate in result.candidates)
    warm_up = [row for row in result.rows if row.phase == "warm-up" and row.setting == result.setting and row.server == "speculative"]
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
    assert result.point.plain.output_tok_s > 3 * 20  # four at a time


class _Faulty(Server):
    """Changes an answer of the speculative server on its way."""

    def stream(self, input_ids: Any, max_new_tokens: int) -> Answer:
        answer = super().stream(input_ids, max_new_tokens)
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

    def cold(self: Measurement, pair: Pair, concurrency: int) -> None:
        return None

    monkeypatch.setattr(Measurement, "prepare", cold)
    assert bad(measure(Machine()))["warmed up"] == INVALID


def test_a_server_that_does_not_speculate_ends_the_exploring() -> None:
    with pytest.raises(ProofFailed) as failed:
        measure(Machine(server_class=_DoesNotSpeculate))
    assert failed.value.verdict.kind == "launch-flags"
    result = measure(Machine(server_class=_DoesNotSpeculate), given={"choice": chosen(2)})
    assert bad(result)["speculation where asked"] == (Outcome.FAIL, "launch-flags")


def test_answers_of_one_token_measure_nothing() -> None:
    with pytest.raises(ProofFailed, match="longer answers") as failed:
        measure(Machine(), output_tokens=1, given={"predicted": {Setting(steps=1): Prediction(rounds=[1] * 10, right=[0] * 10)}})
    assert failed.value.verdict.kind == "invalid-measurement"


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


@pytest.mark.parametrize("given", [{"prompts": []}, {"predicted": {}}, {"choice": CachedChoice(settings={2: Setting(steps=1)})}])
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
        result = measure(machine, seed=seed, given={"choice": chosen(1)})
        held += 1.0 in result.speedup
        widths.append(max(result.speedup.high - 1, 1 - result.speedup.low))
    assert held >= 18
    assert max(widths) < 0.05


@pytest.mark.parametrize("noise", [0.03, 0.07])
def test_the_noise_of_the_plain_server_is_told_as_it_is(noise: float) -> None:
    """The interval of plain against itself holds 1 as often as it says, on a machine as noisy as two shared cores are."""
    found = [measure(Machine(noise=noise, seed=seed), seed=seed, prompts=14, given={"choice": chosen(2)}).point.noise for seed in range(20)]
    assert sum(1.0 in interval for interval in found) >= 18
    widths = sorted(max(interval.high - interval.value, interval.value - interval.low) for interval in found)
    assert widths[10] < 0.75 * noise  # 2.06 · √(1.5 / 14) = 0.67 of it


def test_a_machine_that_slows_down_over_minutes_is_no_noise_of_the_pairs() -> None:
    class Slowing(Machine):
        calls = 0

        def seconds(self, prompt: int, steps_of_work: float) -> tuple[float, float]:
            self.calls += 1
            first, whole = super().seconds(prompt, steps_of_work)
            return first * (1 + self.calls / 200), whole * (1 + self.calls / 200)

    result = measure(Slowing(noise=0.02), prompts=14, given={"choice": chosen(2)})
    assert 1.0 in result.point.noise
    assert result.point.noise.high < 1.1


def test_a_sweep_chooses_for_each_concurrency_and_starts_few() -> None:
    class Crowded(Server):
        """Compute is short: of many requests at once, each verified token costs as much as a step."""

        def stream(self, input_ids: Any, max_new_tokens: int) -> Answer:
            answer = super().stream(input_ids, max_new_tokens)
            crowd = self.machine.crowd
            return replace(answer, seconds=answer.seconds * (1 + (self.steps or 0) * (0.6 if crowd > 1 else 0)))

    class Busy(Machine):
        crowd = 1

    machine = Busy(skill=0.8, slope=0.05, server_class=Crowded)
    from tasks.benchmark.measure import Measurement

    send = Measurement._send

    def counted(self: Measurement, pair: Any, server: Any, phase: Any, repeat: int, concurrency: int, *rest: Any) -> None:
        machine.crowd = concurrency
        send(self, pair, server, phase, repeat, concurrency, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Measurement, "_send", counted)
        result = measure(machine, prompts=24, concurrencies=[4])
    alone, crowded = result.points
    assert (alone.concurrency, crowded.concurrency) == (1, 4)
    assert alone.setting.steps > crowded.setting.steps == 1
    assert alone.speedup.low > 1 > crowded.speedup.low
    assert result.stops_paying == 4
    assert result.choice.settings == {1: alone.setting, 4: crowded.setting}
    assert check_of(result, "concurrency 4").verdict in (Outcome.PASS, Outcome.WARN)
    measured = [e for c in result.candidates for e in c.explored if e.round_cost]
    assert {e.concurrency for e in measured} == {1, 4}
    told = render(result)
    assert "From concurrency 4 on it is not shown to pay." in told and "## Settings tried" in told


def test_a_broken_proof_at_a_further_concurrency_breaks_the_run() -> None:
    result = measure(Machine(server_class=_Diverges), prompts=16, concurrencies=[2])
    assert bad(result)["concurrency 2"] == (Outcome.FAIL, "greedy-divergence")


def test_more_requests_than_a_server_decodes_at_once() -> None:
    machine = Machine(batch=4)
    with pytest.raises(ProofFailed, match="max_running_requests") as failed:
        measure(machine, prompts=24, concurrency=8)
    assert failed.value.verdict.kind == "invalid-measurement"
    assert failed.value.verdict.verdict is Outcome.INVALID
    assert bad(measure(Machine(batch=4), prompts=24, concurrency=4)) == {}
    assert bad(measure(Machine(batch=None))) == {}


def test_results_by_category() -> None:
    categories = ["code", "maths"] * 5
    result = measure(Machine(), given={"categories": categories})
    assert list(result.categories) == ["code", "maths"]
    assert sum(found.acceptance.verify_rounds for found in result.categories.values()) == result.point.acceptance.verify_rounds
    assert all(found.prompts == 5 and found.speedup.low < found.speedup.value for found in result.categories.values())
    assert "## By category" in render(result)


def test_without_a_prediction_acceptance_is_told_and_not_judged() -> None:
    result = measure(Machine(server_class=_AcceptsLess), given={"predicted": {}, "choice": chosen(2)})
    assert bad(result) == {}
    assert result.point.predicted_accept_length is None
    assert result.point.acceptance.accept_length > 1


def test_settings_of_a_config() -> None:
    def tried(deploy: dict[str, Any], **config: Any) -> list[str]:
        return [s.name for s in settings_to_try(BenchmarkConfig.model_validate(config), DeployConfig.model_validate(deploy))]

    assert tried({}) == ["1", "2", "3", "4"]
    assert tried({"topk": 2, "draft_tokens": 6}, steps=[1, 3]) == ["3x2x6"]
    assert tried({}, steps=[2], topk=[1, 4], draft_tokens=[8, 16, 64]) == ["2", "2x4x8", "2x4x16"]
    with pytest.raises(ValidationError, match="are proposed"):
        Setting(steps=2, topk=2, draft_tokens=20)
    tree = Setting(steps=3, topk=2, draft_tokens=6)
    assert (tree.deployed(DeployConfig()).topk, tree.deployed(DeployConfig()).draft_tokens) == (2, 6)
    assert Setting(steps=3).deployed(DeployConfig(topk=4, draft_tokens=9)) == DeployConfig()


def test_the_cost_model_learns() -> None:
    cost = RoundCost()
    one, two, three = (Setting(steps=k) for k in (1, 2, 3))
    before = cost.of(three)
    cost.learn(one, Interval(value=1.3, low=1.28, high=1.32))
    after_one = cost.of(three)
    cost.learn(two, Interval(value=1.4, low=1.38, high=1.42))
    after_two = cost.of(three)
    assert before.high - before.low > after_one.high - after_one.low > after_two.high - after_two.low
    assert 1.5 in after_two
    assert cost.of(one).value == pytest.approx(1.3, abs=0.02)
    tree = Setting(steps=2, topk=4, draft_tokens=16)
    assert cost.of(tree).high - cost.of(tree).low > after_two.high - after_two.low  # no tree was measured yet
    cost.learn(tree, Interval(value=2.0, low=1.98, high=2.02))
    assert cost.of(Setting(steps=2, topk=4, draft_tokens=12)).value == pytest.approx(1.8, abs=0.1)


def test_what_is_worth_a_start() -> None:
    predicted = Interval(value=1.2, low=1.1, high=1.3)
    assert worth_a_start(predicted, None)
    assert worth_a_start(predicted, 1.25)
    assert not worth_a_start(predicted, 1.29)
