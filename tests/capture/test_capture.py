"""Data and capture together, on a tiny target: fused and computed features, resumption, and faults that have to be found."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from tasks.capture import capture_features, files, open_tap
from tasks.capture.check import check
from tasks.config import CaptureConfig, DataConfig, TargetConfig
from tasks.data import make_data
from tasks.device import Placement
from tasks.products import CaptureProduct, DataProduct, TargetProduct, feature_file
from tasks.report import Silent
from tasks.store import Store
from tasks.target import open_reference, open_target, prepare_target
from tasks.target.model import Target
from tasks.verdict import BadInput, Outcome, ProofFailed
from tasks.wiring.answering import Answer
from tasks.wiring.record import WiringRecord
from tests.tiny import STYLES, TOPICS

PLACEMENT = Placement(device="cpu", dtype="float32")
CAPTURE = CaptureConfig(boundaries=[1, 3, 5], dtype="float32", device="cpu")


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"messages": [{"role": "user", "content": f"{t} {s}"}]}) + "\n" for t in TOPICS for s in STYLES[:2]))
    return path


@pytest.fixture
def target(tiny_target: Path, tmp_path: Path) -> TargetProduct:
    return prepare_target(TargetConfig(source=str(tiny_target), name="tiny"), store=Store(tmp_path / "t"), report=Silent())


def engine(target: TargetProduct) -> Target:
    return open_target(target, device="cpu", dtype="float32")


def data_of(target: TargetProduct, prompts: Path, store: Store, *, fused: bool = True, opened: list[Target] | None = None) -> DataProduct:
    config = DataConfig(prompts=str(prompts), conversations=20, held_out=0.2, answer_tokens=12, min_answer_tokens=2, batch=4)
    tap = open_tap(CAPTURE, target) if fused else None
    return make_data(
        config, seed=0, target=target, open_engine=lambda: engine(target), placement=PLACEMENT, tap=tap, store=store, report=Silent()
    )


def captured(target: TargetProduct, data: DataProduct, store: Store, extractor: Target | None = None) -> CaptureProduct:
    def opened() -> Target:
        assert extractor is not None, "the features were there already, and yet the target was opened"
        return extractor

    return capture_features(
        CAPTURE,
        data=data,
        target=target,
        open_target=opened,
        open_reference=lambda: open_reference(target),
        placement=PLACEMENT,
        store=store,
        report=Silent(),
    )


def test_features_kept_while_answering_are_those_that_are_computed_afterwards(target: TargetProduct, prompts: Path, tmp_path: Path) -> None:
    fused_data = data_of(target, prompts, Store(tmp_path / "a"))
    plain_data = data_of(target, prompts, Store(tmp_path / "b"), fused=False)
    assert fused_data.sha256 == plain_data.sha256
    fused = captured(target, fused_data, Store(tmp_path / "a"))
    plain = captured(target, plain_data, Store(tmp_path / "b"), engine(target))
    assert fused.rows == plain.rows == fused_data.train + fused_data.held_out
    for row in range(fused.rows):
        (one, tokens), (other, same) = files.read(feature_file(fused.folder, row)), files.read(feature_file(plain.folder, row))
        assert tokens == same and one.shape == (len(tokens), 4, 64)
        torch.testing.assert_close(one.float(), other.float(), atol=2e-2, rtol=2e-2)
    assert fused.worst_cosine > 0.999
    record = WiringRecord.read(fused.folder)
    assert record.features.boundaries == [1, 3, 5] and record.target == target.print and record.data_sha256 == fused_data.sha256


def test_interrupted_answering_ends_in_the_same_bytes(
    target: TargetProduct, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.data.make._CHUNK", 8)
    straight = data_of(target, prompts, Store(tmp_path / "a"))
    answer = Target.answer

    def dies_in_the_second_chunk(self: Target, asked: Sequence[list[int]], new: int, **options: object) -> Iterator[Answer]:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return answer(self, asked, new, **options)  # type: ignore[arg-type]

    calls: list[int] = []
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Target, "answer", dies_in_the_second_chunk)
        data_of(target, prompts, Store(tmp_path / "b"))
    resumed = data_of(target, prompts, Store(tmp_path / "b"))
    assert straight.sha256 == resumed.sha256
    one, other = captured(target, straight, Store(tmp_path / "a")), captured(target, resumed, Store(tmp_path / "b"))
    assert one.sha256 == other.sha256


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        (lambda x: x.roll(1, dims=0), "features"),
        (lambda x: x.roll(1, dims=1), "features"),
        (lambda x: x.index_fill(0, torch.tensor([2]), 0.0), "features"),
        (lambda x: x.index_fill(0, torch.tensor([2]), torch.nan), "features"),
        (lambda x: x[:-1], "features"),
    ],
    ids=["one late", "other boundaries", "zeros", "nan", "too short"],
)
def test_a_spoilt_file_is_found(target: TargetProduct, prompts: Path, tmp_path: Path, spoil: object, kind: str) -> None:
    data = data_of(target, prompts, Store(tmp_path / "a"))
    path = files.kept(data.folder / "features", json.loads(data.conversations.read_text().splitlines()[0])["id"])
    features, tokens = files.read(path)
    spoilt = spoil(features)  # type: ignore[operator]
    files.write(path, spoilt, tokens)
    if len(spoilt) != len(tokens):
        assert not files.holds(path, tokens, 4)
        return
    with pytest.raises(ProofFailed) as error:
        captured(target, data, Store(tmp_path / "a"))
    assert error.value.verdict.kind == kind and error.value.verdict.stage == "capture"


def test_a_normed_last_state_gives_wrong_teacher_targets(target: TargetProduct, prompts: Path, tmp_path: Path) -> None:
    data = data_of(target, prompts, Store(tmp_path / "a"))
    capture = captured(target, data, Store(tmp_path / "a"))
    reference = open_reference(target)
    for row in range(capture.rows):
        path = feature_file(capture.folder, row)
        features, tokens = files.read(path)
        features[:, -1] = reference._body.norm(features[:, -1].float()).to(torch.bfloat16)
        files.write(path, features, tokens)
    verdict, _ = check(capture.folder, data.rows(), [1, 3, 5, 6], reference, 4, "float32")
    assert verdict.verdict is Outcome.FAIL
    assert {c.kind for c in verdict.checks if c.verdict is Outcome.FAIL} == {"features", "teacher-targets"}


def test_boundaries_outside_of_the_target_are_refused(target: TargetProduct) -> None:
    with pytest.raises(BadInput, match="boundaries"):
        open_tap(CaptureConfig(boundaries=[1, 3, 6]), target)
