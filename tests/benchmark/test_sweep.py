"""Which settings are tried, what is told of each concurrency and category, and how wide the intervals are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from tasks.benchmark import Setting, render, settings_to_try
from tasks.benchmark.cost import RoundCost, worth_a_start
from tasks.benchmark.measure import Measurement
from tasks.config import BenchmarkConfig, DeployConfig
from tasks.statistics import Interval
from tasks.verdict import Outcome, ProofFailed
from tests.benchmark.decoder import Answer, Machine, Server
from tests.benchmark.faulty import AcceptsLess, Diverges
from tests.benchmark.measuring import bad, check_of, chosen, measure


@pytest.mark.parametrize(("skill", "slope", "best"), [(0.95, 0.03, 4), (0.3, 0.3, 1)])
def test_the_best_draft_length_is_found_and_the_hopeless_are_not_started(skill: float, slope: float, best: int) -> None:
    machine = Machine(skill=skill, slope=slope)
    result = measure(machine)
    assert result.setting.steps == best
    ruled_out = [candidate.setting.steps for candidate in result.candidates if candidate.ruled_out]
    assert ruled_out
    assert not set(ruled_out) & set(machine.started)
    assert {candidate.setting.steps for candidate in result.candidates} == {1, 2, 3, 4}


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
    assert widths[10] < 0.5 * noise  # 2.05 · √(2 / (14 · 3)) = 0.45 of it


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
    result = measure(Machine(server_class=Diverges), prompts=16, concurrencies=[2])
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
    result = measure(Machine(server_class=AcceptsLess), given={"predicted": {}, "choice": chosen(2)})
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
