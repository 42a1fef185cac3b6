"""The worst check decides, and outcomes map to exit statuses."""

import pytest

from tasks.verdict import BadInput, Check, MachineTrouble, Outcome, ProofFailed, Verdict


def check(verdict: Outcome, kind: str | None = None) -> Check:
    return Check(name=f"{verdict}", verdict=verdict, kind=kind, message=f"{kind} happened", numbers={"asked": 1, "got": 2})


@pytest.mark.parametrize(
    ("outcomes", "worst", "status"),
    [
        ([Outcome.PASS], Outcome.PASS, 0),
        ([Outcome.PASS, Outcome.WARN], Outcome.WARN, 0),
        ([Outcome.WARN, Outcome.INVALID], Outcome.INVALID, 1),
        ([Outcome.FAIL, Outcome.INVALID], Outcome.FAIL, 1),
    ],
)
def test_worst_decides(outcomes: list[Outcome], worst: Outcome, status: int) -> None:
    verdict = Verdict.of("verify", [check(o, "rope" if o is not Outcome.PASS else None) for o in outcomes], passed="all well")
    assert verdict.verdict is worst and verdict.verdict.exit_status == status
    assert (verdict.message, verdict.kind) == (("all well", None) if worst is Outcome.PASS else ("rope happened", "rope"))


def test_the_first_of_the_worst_names_the_kind() -> None:
    assert Verdict.of("x", [check(Outcome.FAIL, "tensors"), check(Outcome.FAIL, "rope")], passed="").kind == "tensors"


def test_the_worst_check_names_its_stage() -> None:
    earlier = Verdict.of("benchmark", [check(Outcome.WARN, "rope")], passed="").checks
    assert Verdict.of("promote", [*earlier, check(Outcome.PASS)], passed="").stage == "benchmark"
    assert Verdict.of("promote", [*earlier, check(Outcome.FAIL, "tensors")], passed="").stage == "promote"
    assert Verdict.of("promote", [check(Outcome.PASS)], passed="").stage == "promote"


def test_more_checks_change_the_verdict_only_for_the_worse() -> None:
    named = check(Outcome.FAIL, "rope").model_copy(update={"numbers": {"hypothesis": "theta 5"}})
    assert Verdict.of("deploy", [named], passed="").hypothesis == "theta 5"
    broken = Verdict.of("verify", [check(Outcome.FAIL, "rope")], passed="", hypothesis="theta 10000")
    assert broken.also([]) is broken
    more = broken.also([check(Outcome.FAIL, "tensors")])
    assert (more.kind, more.hypothesis, more.stage, len(more.checks)) == ("rope", "theta 10000", "verify", 2)
    passed = Verdict.of("promote", [check(Outcome.PASS)], passed="all well")
    assert passed.also([check(Outcome.PASS)]).message == "all well"
    alarm = passed.also([check(Outcome.WARN, "rope").model_copy(update={"stage": "benchmark"})])
    assert (alarm.verdict, alarm.kind, alarm.stage, alarm.message) == (Outcome.WARN, "rope", "benchmark", "rope happened")


def test_nothing_compared_proves_nothing() -> None:
    with pytest.raises(ValueError, match="at least one check"):
        Verdict.of("verify", [], passed="all well")


def test_errors_carry_their_status() -> None:
    bad = BadInput("train.epochs", found=0, expected="more than 0", do="Set it.")
    assert (bad.exit_status, str(bad)) == (2, "train.epochs: found 0; expected more than 0. Set it.")
    assert MachineTrouble("no port").exit_status == 3
    assert ProofFailed(Verdict.of("verify", [check(Outcome.FAIL, "rope")], passed="")).exit_status == 1
