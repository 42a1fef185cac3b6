"""What passes between two machines, through a real MLflow store: it arrives as it was sent, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.handover import Fault, Order, Result, receive, receive_drafter, send, send_drafter
from tasks.benchmark import Prediction, Setting
from tasks.config import Config
from tasks.ledger import Run, open_ledger
from tasks.store import Store, sha256_file
from tasks.verdict import BadInput, Check, DraftproofError, MachineTrouble, Outcome, ProofFailed, Verdict


@pytest.fixture
def run(own_home: Path) -> Iterator[Run]:
    with open_ledger("tiny").run("pipeline") as opened:
        yield opened


@pytest.fixture
def other(run: Run) -> Run:
    """The same run as another process has it, by its id."""
    return open_ledger("tiny").opened(run.id)


@pytest.fixture
def drafter(tmp_path: Path) -> Path:
    folder = tmp_path / "drafter"
    (folder / "extra").mkdir(parents=True)
    for name in ("config.json", "model.safetensors", "product.json", "extra/notes.txt"):
        (folder / name).write_text(f"what {name} says")
    return folder


def test_an_order_arrives(run: Run, other: Run) -> None:
    order = Order(
        job="benchmark",
        config=Config.model_validate({"target": {"source": "x", "name": "tiny"}, "serving": {"pool": "there"}}),
        holds_machine="here",
        prompts=[[1, 2], [3]],
        predicted=[
            (Setting(steps=2), Prediction(rounds=[3], right=[2])),
            (Setting(steps=2, topk=2, draft_tokens=4), Prediction(rounds=[1], right=[2])),
        ],
    )
    assert receive(other, "benchmark-order", send(run, "benchmark-order", order), Order) == order


def test_one_that_was_changed_on_its_way_is_refused(run: Run, other: Run) -> None:
    sha256 = send(run, "deploy-result", Result())
    run.text("handover/deploy-result.json", Result(target_sha256="another").model_dump_json())
    with pytest.raises(MachineTrouble, match=rf"deploy-result.json: sent {sha256}, arrived (?!{sha256})"):
        receive(other, "deploy-result", sha256, Result)
    with pytest.raises(MachineTrouble):
        receive(other, "never-sent", sha256, Result)


def test_one_of_another_version_says_so(run: Run, other: Run) -> None:
    sha256 = send(
        run, "deploy-result", Order(job="deploy", config=Config.model_validate({"target": {"source": "x", "name": "t"}}), holds_machine="")
    )
    with pytest.raises(MachineTrouble, match="same commit"):
        receive(other, "deploy-result", sha256, Result)


def test_the_drafters_files_arrive_once(run: Run, other: Run, drafter: Path) -> None:
    files = send_drafter(run, drafter)
    assert set(files) == {"config.json", "model.safetensors", "extra/notes.txt"}, "the store's own note stays"
    folder = receive_drafter(other, files, Store())
    assert {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()} == set(files)
    assert (folder / "extra/notes.txt").read_text() == "what extra/notes.txt says"
    assert receive_drafter(other, files, Store()) == folder


@pytest.mark.parametrize("name", ["model.safetensors", "one-more.txt"])
def test_files_that_are_not_those_that_were_sent_are_refused(run: Run, other: Run, drafter: Path, tmp_path: Path, name: str) -> None:
    files = send_drafter(run, drafter)
    (tmp_path / name).write_text("planted")
    run.file(tmp_path / name, "handover/drafter")
    for _ in range(2):  # what the first try fetched is not taken by the second
        with pytest.raises(MachineTrouble, match=f"not what was sent, by SHA-256: {name}: sent "):
            receive_drafter(other, files, Store())


def test_a_name_that_climbs_out_of_the_folder_is_refused(run: Run, other: Run, drafter: Path, own_home: Path) -> None:
    """An order names its files: one that lies elsewhere on the machine that serves is not among those that arrived."""
    files = send_drafter(run, drafter)
    outside = own_home / "cache" / "arrived" / "outside.txt"
    outside.parent.mkdir(parents=True)
    outside.write_text("somebody else's")
    with pytest.raises(MachineTrouble, match=r"\.\./\.\./outside\.txt: sent .*, arrived nothing"):
        receive_drafter(other, {**files, "../../outside.txt": sha256_file(outside)}, Store())
    assert outside.read_text() == "somebody else's"


def test_a_run_that_the_store_has_not(own_home: Path) -> None:
    with pytest.raises(MachineTrouble, match=r"has no run 0{32}.* set MLFLOW_TRACKING_URI here"):
        open_ledger("tiny").opened("0" * 32)


BROKEN = Verdict.of("deploy", [Check(name="served logits", verdict=Outcome.FAIL, kind="rope", message="they differ")], passed="")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ProofFailed(BROKEN), "FAIL [rope] in deploy: they differ"),
        (
            BadInput("deploy.port", found=1, expected="2", do="Mend it."),
            "deploy.port (in work pool 'there'): found 1; expected 2. Mend it.",
        ),
        (MachineTrouble("the server died"), "in work pool 'there': the server died"),
    ],
)
def test_what_ended_a_job_is_raised_again(error: DraftproofError, told: str) -> None:
    again = Fault.model_validate_json(Fault.of(error).model_dump_json()).error("there")
    assert (type(again), again.exit_status, str(again)) == (type(error), error.exit_status, told)
