"""A week of operation in some minutes, with the real Prefect server, worker and CLI, MLflow server, kept SGLang server and a webhook.

The tests are one story, told in the order of the file: a worker dies with its run; meanwhile a server is watched, and a fall of
its acceptance calls for training; the night trains, promotes, and replaces that server; the next one finds nothing new; then
conversations are dropped into the folder, and a night FAILs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from mlflow import MlflowClient

from flows.kept import running
from tasks.config import Config, load
from tasks.deploy.ports import free_port
from tasks.deploy.records import ServerRecord
from tasks.ledger import open_ledger
from tasks.promote import Release
from tasks.report import Silent
from tasks.store import Store
from tasks.target import prepare_target
from tasks.verdict import Outcome
from tasks.watch import Counters
from tasks.watch.kept import ServerCurve, known_falls
from tests.processes import processes_of
from tests.promote.test_registry import promoted
from tests.security.canary import command_lines_that_tell, files_that_tell
from tests.servers.operating import Client, Operated, Receiver, ask
from tests.servers.running import TARGET, Place
from tests.tiny import STYLES, TOPICS, pipeline_config
from tests.verify.drafters import random_drafter

pytestmark = pytest.mark.servers
MODEL = f"{TARGET}-eagle3"
NIGHTLY, WATCH = "train-verify-deploy/nightly", "watch-acceptance/default"
# infra/automations.yaml: two minutes after the last sign of life, and what the server takes to look.
CRASHED_WITHIN = 150


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operated]:
    """Up, with a folder of conversations, and a poor drafter as the champion."""
    folder, receiver = tmp_path_factory.mktemp("operate"), Receiver()
    ports = {"prefect": free_port("127.0.0.1"), "mlflow": free_port("127.0.0.1")}
    site = Operated(Place.made(folder, f"http://127.0.0.1:{ports['prefect']}/api"), receiver, ports)
    settings = pipeline_config(folder)
    chats = folder / "chats"
    chats.mkdir()
    Path(settings["data"]["prompts"]).rename(chats / "first.jsonl")
    settings["data"]["prompts"] = str(chats)
    settings["deploy"]["metrics"] = True
    # The old champion's speed is not what is tried here: measuring it would start one server more.
    settings["promote"] |= {"replace_server": True, "min_over_champion": None}
    site.place.config.write_text(yaml.safe_dump(settings), encoding="utf-8")
    try:
        told = site.up()
        assert "tell of a run that failed" in told and receiver.path not in told
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DRAFTPROOF_HOME", str(site.place.home))
            patch.setenv("MLFLOW_TRACKING_URI", site.mlflow)
            poor_champion(load(site.place.config), folder / "poor")
        yield site
    finally:
        try:
            site.draftproof("deploy", "--stop")
        finally:
            site.down()
            receiver.close()
    assert processes_of(site.place.home) == []


def poor_champion(config: Config, folder: Path) -> None:
    promoted(
        open_ledger(TARGET),
        Release(
            model=MODEL,
            drafter=random_drafter(folder),
            target=config.target,
            target_sha256=prepare_target(config.target, store=Store(), report=Silent()).sha256,
            deploy=config.deploy,
            steps=2,
        ),
        Outcome.PASS,
    )


@pytest.fixture(autouse=True)
def home(site: Operated, monkeypatch: pytest.MonkeyPatch) -> Path:
    """That of the site, instead of a test's own, and its ledger."""
    monkeypatch.setenv("DRAFTPROOF_HOME", str(site.place.home))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", site.mlflow)
    return site.place.home


def tonight(site: Operated, *overrides: str) -> dict[str, Any]:
    return {"config_file": str(site.place.config), "only_if_changed": True, "overrides": list(overrides)}


def champion(site: Operated) -> str:
    return MlflowClient(site.mlflow).get_model_version_by_alias(MODEL, "champion").version


def kept() -> ServerRecord:
    record = running(MODEL)
    assert record is not None
    return record


@pytest.fixture(scope="module")
def killed(site: Operated) -> tuple[dict[str, Any], float]:
    """The run whose worker was killed in the middle of a stage, and when."""
    id = site.start(NIGHTLY, tonight(site))
    site.until(lambda: "train       begins" in site.log, "training")
    # What follows is about schedules and events; no run is to begin by itself.
    site.prefect("work-queue", "pause", "machine", "--pool", "draftproof")
    assert site.flow_run(id)["state"]["type"] == "RUNNING"
    site.kill_worker()
    return site.flow_run(id), time.monotonic()


def test_a_schedule_that_was_switched_on_stays_on(site: Operated, killed: object) -> None:
    """`make up` after the worker's death starts it anew, and it alone."""
    (schedule,) = site.api("GET", f"deployments/name/{NIGHTLY}")["schedules"]
    assert not schedule["active"]
    assert schedule["id"] in site.prefect("deployment", "schedule", "ls", NIGHTLY, "--output", "json")
    site.prefect("deployment", "schedule", "resume", NIGHTLY, schedule["id"])
    assert site.up().count("runs already") == 2
    (again,) = site.api("GET", f"deployments/name/{NIGHTLY}")["schedules"]
    assert again["active"] and again["schedule"]["cron"] == schedule["schedule"]["cron"]
    (watch,) = site.api("GET", f"deployments/name/{WATCH}")["schedules"]
    assert not watch["active"]
    planned = site.until(lambda: [run for run in site.runs_of(NIGHTLY) if run["auto_scheduled"]], "planned run")
    assert {run["state"]["type"] for run in planned} == {"SCHEDULED"}
    site.prefect("deployment", "schedule", "pause", NIGHTLY, again["id"])


def test_a_lasting_fall_of_a_real_server_calls_for_training(site: Operated, killed: object) -> None:
    site.draftproof("deploy", f"{MODEL}@champion")
    server, watched = kept(), {"target": TARGET, "min_rounds": 50}
    assert ask(server.url)
    first = site.run(WATCH, watched)
    assert first["state"]["message"] == "first look: counting starts here", first["state"]
    curve = ServerCurve.of(open_ledger(TARGET), server.url, str(server.drafter))
    before = curve.last()
    assert before is not None and before.rounds > 0
    remembered(curve, before)
    for style in STYLES:
        assert ask(server.url, style=style)
    second = site.run(WATCH, watched)
    assert second["state"]["type"] == "COMPLETED" and second["state"]["message"].startswith("fell for good: "), second["state"]
    counted = curve.last()
    assert counted is not None
    new = counted.since(before)
    assert (new.requests, new.generated) == (len(STYLES), 30 * len(STYLES))
    found = curve.intervals()[-1]
    assert (found.accept_length, found.rounds) == (pytest.approx(new.accept_length), new.rounds)
    assert 1 <= found.accept_length < 2, "a drafter with random weights"
    (fall,) = known_falls(open_ledger(TARGET)) or []
    assert fall.message == second["state"]["message"]
    called = site.until(lambda: [run for run in site.runs_of(NIGHTLY) if (run["created_by"] or {}).get("type") == "AUTOMATION"], "run")
    assert [run["parameters"]["parameters"]["only_if_changed"] for run in called] == [True]
    site.api("DELETE", f"flow_runs/{called[0]['id']}")  # it would run the demo


def remembered(curve: ServerCurve, now: Counters) -> None:
    """Looks of better days, and five of this one: the next is the sixth, which makes it last."""
    with curve.run:
        for step, generated in enumerate([*range(2500, 2508), *range(1020, 1025)]):
            curve.add(Counters(requests=0, generated=generated, rounds=1000), now, step)


def test_a_run_whose_worker_died_is_crashed_and_told(site: Operated, killed: tuple[dict[str, Any], float]) -> None:
    run, when = killed
    ended = site.until(
        lambda: (found := site.flow_run(run["id"]))["state"]["type"] == "CRASHED" and found,
        "crash",
        max(5.0, when + CRASHED_WITHIN - time.monotonic()),
    )
    assert "Nothing was heard of it" in ended["state"]["message"]
    (text,) = site.until(lambda: site.receiver.told(run["name"]), "message", 20)
    assert text.startswith(f"train-verify-deploy {run['name']}: Crashed: ") and f"/runs/flow-run/{run['id']}" in text


def test_the_night_trains_and_its_champion_takes_over(site: Operated, home: Path, killed: tuple[dict[str, Any], float]) -> None:
    old, client = kept(), Client(home / "served" / f"{MODEL}.url")
    site.prefect("work-queue", "resume", "machine", "--pool", "draftproof")
    with client.at_work():
        ended = site.run(NIGHTLY, tonight(site))
    assert ended["state"]["type"] == "COMPLETED" and champion(site) == "2", ended["state"]
    new = kept()
    assert new.url != old.url and new.drafter != old.drafter
    assert not old.alive and new.alive and ask(new.url)
    assert client.wrong == [] and set(client.right) == {old.url, new.url}, client.right
    parent, *_ = next(each for each in site.place.runs() if each[0].data.tags.get("draftproof.flow_run_id") == ended["id"])
    assert parent.data.tags["draftproof.because"] == "no drafter was measured yet"
    (gone,) = [each[0] for each in site.place.runs() if each[0].data.tags.get("draftproof.flow_run_id") == killed[0]["id"]]
    assert gone.info.status == "KILLED"


def test_the_next_night_says_why_there_is_nothing_to_do(site: Operated) -> None:
    before = kept()
    ended = site.run(NIGHTLY, tonight(site))
    message = ended["state"]["message"]
    assert ended["state"]["type"] == "COMPLETED" and message.startswith("nothing changed since run "), message
    assert "data " in message and message.endswith("acceptance: no lasting fall seen since then")
    assert kept() == before and champion(site) == "2"


def test_a_night_that_fails_leaves_all_as_it_was_and_is_told(site: Operated, home: Path) -> None:
    """Conversations were dropped into the folder. A bound that no rounding keeps stands for a broken link."""
    before, texts = kept(), len(site.receiver.texts)
    lines = [f'{{"messages": [{{"role": "user", "content": "{style} {topic}"}}]}}\n' for topic in TOPICS[:4] for style in STYLES]
    (site.place.folder / "chats" / "second.jsonl").write_text("".join(lines), encoding="utf-8")
    client = Client(home / "served" / f"{MODEL}.url")
    with client.at_work():
        ended = site.run(NIGHTLY, tonight(site, "verify.max_logit_difference=1.0e-12", "train.epochs=1"), fails=True)
    parent, *stages = next(each for each in site.place.runs() if each[0].data.tags.get("draftproof.flow_run_id") == ended["id"])
    tags = parent.data.tags
    assert "new since run " in tags["draftproof.because"] and ": data " in tags["draftproof.because"]
    trained = {stage.info.run_name for stage in stages if stage.data.tags.get("draftproof.cached") == "false"}
    assert trained >= {"data", "capture", "train", "export"}
    assert (ended["state"]["type"], tags["draftproof.verdict"], tags["draftproof.stage"]) == ("FAILED", "FAIL", "verify"), ended["state"]
    site.until(lambda: len(site.receiver.texts) > texts, "message", 20)
    (text,) = site.receiver.told(ended["name"])
    assert text.startswith(f"train-verify-deploy {ended['name']}: Failed: FAIL [{tags['draftproof.kind']}] in verify: "), text
    assert kept() == before and before.alive and champion(site) == "2"
    assert client.wrong == [] and set(client.right) == {before.url}


def test_nobody_was_told_anything_else_and_the_address_is_told_nowhere(site: Operated) -> None:
    assert len(site.receiver.texts) == 2, site.receiver.texts
    assert files_that_tell(site.place.folder) == [] and command_lines_that_tell() == set()
