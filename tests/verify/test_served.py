"""What a server recorded of its drafter, where there is too little of it to prove anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.verdict import Outcome, ProofFailed
from tasks.verify.checkpoint import read_checkpoint
from tasks.verify.drafter import load_drafter
from tasks.verify.served import check_chain, read_passes
from tests.verify.targets import PlainTarget


@pytest.mark.parametrize(("content", "said"), [(None, "nothing recorded"), (b"\x08\x00", "no recorded pass")])
def test_nothing_readable_was_recorded(content: bytes | None, said: str, tmp_path: Path) -> None:
    if content:
        (tmp_path / "000.safetensors").write_bytes(content)
    with pytest.raises(ProofFailed, match=said) as raised:
        read_passes(tmp_path)
    assert raised.value.verdict.verdict is Outcome.INVALID


def test_a_chain_of_which_no_draft_was_fed_on_proves_nothing(fitted_draft: Path, plain_target: PlainTarget) -> None:
    check = check_chain(load_drafter(read_checkpoint(fitted_draft), plain_target.embedding()), [])
    assert (check.verdict, check.kind) == (Outcome.INVALID, "invalid-measurement")
