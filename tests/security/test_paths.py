"""Nothing climbs out of the folders that it belongs in: what is removed, what is fetched, what the registry says."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from mlflow.exceptions import MlflowException

from flows.garbage import collect_here, entries
from tasks.ledger import Ledger, open_ledger
from tasks.promote import find_release
from tasks.verdict import BadInput, Outcome
from tests.promote.test_registry import drafter, promoted, release


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Somebody's own folders, old enough to be taken for garbage."""
    for name in ("photos/2019", "photos/2020.partial"):
        (tmp_path / "outside" / name).mkdir(parents=True)
        (tmp_path / "outside" / name / "file").write_text("mine")
        os.utime(tmp_path / "outside" / name, (time.time() - 90 * 86400,) * 2)
    return tmp_path / "outside"


def test_gc_removes_nothing_that_a_link_leads_to(own_home: Path, outside: Path) -> None:
    ours = own_home / "cache" / "train" / "nobodys"
    ours.mkdir(parents=True)
    (ours / "link").symlink_to(outside / "photos")
    links = {
        "cache/photos": "photos",
        "cache/train/one": "photos/2019",
        "cache/train/old.partial": "photos/2020.partial",
        "runs/gone": "photos",
    }
    for link, to in links.items():
        (own_home / link).parent.mkdir(parents=True, exist_ok=True)
        (own_home / link).symlink_to(outside / to)
    client = open_ledger("tiny").client
    assert [entry.path for entry in entries(client)] == [ours]
    assert collect_here(yes=True) == 0
    assert not ours.exists() and all((own_home / link).is_symlink() for link in links)
    assert sorted(str(path.relative_to(outside)) for path in outside.rglob("file")) == ["photos/2019/file", "photos/2020.partial/file"]


def test_gc_serves_a_cache_on_another_disk(own_home: Path, tmp_path: Path) -> None:
    """The whole cache may be a link: it is the user who put it there."""
    (tmp_path / "large-disk" / "train" / "nobodys").mkdir(parents=True)
    (own_home / "cache").symlink_to(tmp_path / "large-disk")
    client = open_ledger("tiny").client
    assert [entry.path for entry in entries(client)] == [own_home / "cache/train/nobodys"]
    assert collect_here(yes=True) == 0 and not (tmp_path / "large-disk/train/nobodys").exists()


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.setenv("DRAFTPROOF_HOME", str(tmp_path_factory.mktemp("home")))
        return open_ledger("tiny")


@pytest.mark.parametrize(
    ("tag", "value"),
    [
        ("files_sha256", "../../../outside/photos"),
        ("files_sha256", "/etc"),
        ("files_sha256", "ab" * 31 + "/."),
        ("target", "!!python/object:os.system"),
        ("target", '{"source": "x", "name": "../x"}'),
        ("deploy", '{"host": "0.0.0.0"}'),
        ("deploy", '{"unknown": 1}'),
        ("steps", "[" * 3000),
        ("steps", "__import__('os')"),
    ],
)
def test_a_version_whose_tags_were_changed_is_not_served(
    ledger: Ledger, own_home: Path, outside: Path, tmp_path: Path, tag: str, value: str
) -> None:
    made, _ = promoted(ledger, release(drafter(tmp_path / "d"), "tampered-eagle3"), Outcome.PASS)
    ledger.client.set_model_version_tag("tampered-eagle3", made.version, f"draftproof.{tag}", value)
    with pytest.raises(BadInput, match="tags that are not ours"):
        find_release(ledger.client, "tampered-eagle3")
    assert not (own_home / "cache").exists() and len(list(outside.rglob("file"))) == 2


def test_what_was_planted_among_the_files_of_a_version_is_not_served(ledger: Ledger, outside: Path, tmp_path: Path) -> None:
    made, _ = promoted(ledger, release(drafter(tmp_path / "d"), "planted-eagle3"), Outcome.PASS)
    source = ledger.client.get_model_version("planted-eagle3", made.version).source
    stored = Path(ledger.client.get_logged_model(source.removeprefix("models:/")).artifact_location)
    (stored / "more").symlink_to(outside / "photos/2019/file")
    with pytest.raises(MlflowException, match="outside the artifact directory"):
        find_release(ledger.client, "planted-eagle3")
