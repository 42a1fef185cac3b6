"""Acceptance cold and warm: what counts as moved. Real servers: tests/servers/test_launch_faults.py."""

from __future__ import annotations

import re

import pytest

from tasks.deploy.cache import same_when_warm
from tasks.deploy.generation import Generation
from tasks.verdict import Outcome


def answer(rounds: int, right: int, *, cached: int = 0, tokens: int = 9) -> Generation:
    return Generation([tokens] * 9, 8, cached, 0.1, "length", verify_rounds=rounds, right_drafts=right)


@pytest.mark.parametrize(
    ("warm", "verdict", "words"),
    [
        (answer(10, 20, cached=7), Outcome.PASS, "1 of 1 texts are the same, 7 prompt tokens were reused"),
        (answer(10, 19, cached=7), Outcome.PASS, r"3\.000 from an empty cache, 2\.900 from a filled one \(-3\.3%, of 5% at most\)"),
        (answer(10, 18, cached=7), Outcome.WARN, r"2\.800 from a filled one .*disable_radix_cache"),
        (answer(10, 22, cached=7), Outcome.WARN, r"\+6\.7%"),
        (answer(10, 20), Outcome.WARN, "0 prompt tokens were reused"),
        (answer(10, 20, cached=7, tokens=8), Outcome.WARN, "0 of 1 texts are the same"),
    ],
)
def test_acceptance_may_not_depend_on_the_cache(warm: Generation, verdict: Outcome, words: str) -> None:
    check = same_when_warm([answer(10, 20)], [warm], tolerance=0.05)
    assert (check.verdict, check.kind) == (verdict, None if verdict is Outcome.PASS else "runtime-interaction")
    assert re.search(words, check.message), check.message


def test_a_text_that_differs_does_not_count() -> None:
    """In lower precision it may part from the cold one, and then has another acceptance."""
    cold, warm = [answer(10, 20), answer(10, 20)], [answer(10, 20, cached=7), answer(10, 2, cached=7, tokens=3)]
    assert same_when_warm(cold, warm, tolerance=0.05).verdict is Outcome.PASS
