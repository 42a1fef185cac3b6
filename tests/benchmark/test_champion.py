"""The champion beside the candidate: in which order they are asked, and what is told of two whose true ratio is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import Any

import pytest

from tasks.benchmark import Benchmark, Champion, Setting, Versus, render
from tasks.verdict import MachineTrouble, Outcome
from tests.benchmark.decoder import Answer, Machine, Server, decode
from tests.benchmark.faulty import AnswersShort, DoesNotSpeculate, FailsNowAndThen, KeepsItsCache
from tests.benchmark.measuring import LENGTH, bad, chosen, make_prompts, measure

INVALID = (Outcome.INVALID, "invalid-measurement")
STEPS, ITS_STEPS = 2, 3


def beside(candidate: Machine, reigning: Machine, *, room: bool = True, seed: int = 1, **more: Any) -> Benchmark:
    """Measured with the setting of 2 steps beside a champion of 3."""
    reigning.running = candidate.running
    champion = Champion(version="7", setting=Setting(steps=ITS_STEPS), start=reigning.start, has_room=lambda: room)
    return measure(candidate, seed=seed, given={"choice": chosen(STEPS), "champion": champion}, **more)


def versus(found: Benchmark) -> Versus:
    assert found.versus is not None
    return found.versus


def seconds(machine: Machine, steps: int) -> float:
    """All prompts once, without noise."""
    rounds = [len(decode(prompt, LENGTH, steps, machine.skill)[1]) for prompt in make_prompts(10, 1)]
    cost = 1 + machine.overhead + machine.slope * steps
    return sum(0.001 * len(prompt) + 0.05 * cost * n for prompt, n in zip(make_prompts(10, 1), rounds, strict=True))


@pytest.mark.parametrize("room", [True, False], ids=["side by side", "in turns"])
@pytest.mark.parametrize(("mine", "its", "side"), [(0.5, 0.9, -1), (0.9, 0.5, 1)], ids=["worse", "better"])
def test_the_ratio_is_the_true_one(mine: float, its: float, side: int, room: bool) -> None:
    candidate, reigning = Machine(skill=mine, seed=1), Machine(skill=its, seed=2)
    found = versus(beside(candidate, reigning, room=room))
    true = seconds(reigning, ITS_STEPS) / seconds(candidate, STEPS)
    assert true in found.over and found.over.value == pytest.approx(true, rel=0.03)
    assert (found.over.low - 1) * side > 0 and (found.over.high - 1) * side > 0
    assert (found.version, found.setting.steps, found.side_by_side) == ("7", ITS_STEPS, room)
    assert found.candidate_tok_s / found.figures.output_tok_s == pytest.approx(found.over.value, rel=0.05)
    assert found.figures.requests == 30
    assert candidate.running == []


def test_equal_drafters_are_told_apart_by_nothing() -> None:
    """The same speed: the interval holds 1 as often as it says."""
    found = [
        versus(beside(Machine(skill=0, overhead=0, slope=0, seed=seed), Machine(skill=0, overhead=0, slope=0, seed=99 + seed), seed=seed))
        for seed in range(20)
    ]
    assert sum(1.0 in each.over for each in found) >= 18
    assert max(each.over.high - each.over.low for each in found) < 0.1


def test_pairs_in_every_order_by_the_seed() -> None:
    found = beside(Machine(), Machine(skill=0.8))
    final = [row for row in found.rows if row.phase == "final"]
    pairs = [final[i : i + 4] for i in range(0, len(final), 4)]
    assert len(final) == 4 * 3 * 10 and all(len({row.prompt for row in pair}) == 1 for pair in pairs)
    orders = Counter(tuple((row.server, row.again) for row in pair) for pair in pairs)
    assert len(orders) == 24 and set(orders.values()) <= {1, 2}
    again, other = (beside(Machine(seed=5), Machine(skill=0.8), seed=seed) for seed in (1, 2))
    assert [(row.server, row.prompt) for row in again.rows] == [(row.server, row.prompt) for row in found.rows]
    assert [(row.server, row.prompt) for row in other.rows] != [(row.server, row.prompt) for row in found.rows]
    warmed = {row.server for row in found.rows if row.phase == "warm-up"}
    assert warmed == {"plain", "speculative", "champion"} and bad(found) == {}


def test_a_third_server_is_started_last_and_ended_first() -> None:
    candidate, reigning = Machine(), Machine(skill=0.8)
    found = beside(candidate, reigning)
    assert max(candidate.most_running, reigning.most_running) == 3
    assert (sorted(candidate.started, key=str), reigning.started) == ([2, None], [3])
    assert found.point.compared == 30, "the champion's answers are no part of the proof"


def test_where_memory_is_small_they_take_turns() -> None:
    candidate, reigning = Machine(), Machine(skill=0.8)
    found = beside(candidate, reigning, room=False)
    assert max(candidate.most_running, reigning.most_running) == 2
    turns = [row.phase for row in found.rows if row.phase in ("final", "champion")]
    # A turn of the candidate asks the plain server twice in each pair.
    assert [(phase, len(list(rows))) for phase, rows in groupby(turns)] == [
        ("final", 30),
        ("champion", 40),
        ("final", 60),
        ("champion", 20),
    ]
    assert (candidate.started.count(None), candidate.started.count(2), reigning.started) == (1, 2, [3, 3])
    assert bad(found) == {} and found.point.compared == 30
    told = render(found)
    assert "Against the champion, in turns" in told and "version 7, 3 steps" in told


def test_a_machine_that_slows_down_between_turns_favours_nobody() -> None:
    calls = [0]

    class Slowing(Machine):
        def seconds(self, prompt: int, steps_of_work: float) -> tuple[float, float]:
            calls[0] += 1
            first, whole = super().seconds(prompt, steps_of_work)
            return first * (1 + calls[0] / 100), whole * (1 + calls[0] / 100)

    flat = {"skill": 0.0, "overhead": 0.0, "slope": 0.0}
    for room in (True, False):
        found = versus(beside(Slowing(**flat, seed=1), Slowing(**flat, seed=2), room=room))
        assert found.over.value == pytest.approx(1, abs=0.03), room  # 1.045 where the turns' own clocks are compared
        assert found.over.high - found.over.low < 0.1, room


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        (AnswersShort, "champion comparable"),
        (DoesNotSpeculate, "champion comparable"),
        (KeepsItsCache, "champion comparable"),
        (FailsNowAndThen, "every request answered"),
    ],
)
@pytest.mark.parametrize("room", [True, False], ids=["side by side", "in turns"])
def test_a_faulty_champion_measures_nothing(fault: type[Server], check: str, room: bool) -> None:
    assert bad(beside(Machine(), Machine(server_class=fault), room=room)) == {check: INVALID}


def test_a_champion_that_answers_nothing_is_the_machines_trouble() -> None:
    class Dead(Server):
        def stream(self, input_ids: Any, max_new_tokens: int) -> Answer:
            raise MachineTrouble("connection refused")

    for room in (True, False):
        machine = Machine()
        with pytest.raises(MachineTrouble, match="connection refused"):
            beside(machine, Machine(server_class=Dead), room=room)
        assert machine.running == []


def test_a_champion_that_does_not_start_leaves_no_server() -> None:
    class NoMemory(Machine):
        @contextmanager
        def start(self, setting: Setting | None) -> Iterator[Server]:
            raise MachineTrouble("no memory")
            yield

    machine = Machine()
    with pytest.raises(MachineTrouble, match="no memory"):
        beside(machine, NoMemory())
    assert machine.running == []
