"""Incidents of the story that a checkpoint can show: the layers, and the offsets."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.verdict import Outcome
from tests.faults.mutants import ids
from tests.faults.test_checkpoints import verify
from tests.tiny import tiny_llama
from tests.verify.drafters import config, tensors, write
from tests.verify.fitted import prove
from tests.verify.targets import PlainTarget

TRAINED, FED = [0, 3, 31], [3, 31, 59]


@pytest.fixture(scope="module")
def deep_target(tmp_path_factory: pytest.TempPathFactory) -> PlainTarget:
    """As many layers as the target of the story."""
    return PlainTarget(tiny_llama(tmp_path_factory.mktemp("deep"), layers=61))


@pytest.mark.parametrize("recorded", [True, False], ids=["record", "probes"])
def test_the_server_feeds_3_31_59_where_0_3_31_was_trained(recorded: bool, deep_target: PlainTarget, tmp_path: Path) -> None:
    settings = config(eagle_config={"eagle_aux_hidden_state_layer_ids": [boundary - 1 for boundary in TRAINED]})
    write(tmp_path, settings, tensors(settings))
    prove(tmp_path, deep_target, TRAINED)
    assert verify(tmp_path, deep_target).verdict.verdict is not Outcome.FAIL

    ids(*(boundary - 1 for boundary in FED))(tmp_path)
    if not recorded:
        (tmp_path / "wiring.json").unlink()
    verdict = verify(tmp_path, deep_target).verdict
    assert (verdict.verdict, verdict.kind) == (Outcome.FAIL, "layer-boundaries")
    assert verdict.hypothesis == "trained on the embedding and all but the last"
    assert verdict.message == (
        f"The server feeds boundaries {FED}; the drafter was trained on {TRAINED}. "
        "Set eagle_config.eagle_aux_hidden_state_layer_ids to [-1, 2, 30]."
    )
