"""What is measured: the champion of a demo run, its target, and the conversations that it was never trained on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tasks.config import DeployConfig
from tasks.products import DataProduct, TargetProduct
from tasks.report import Silent
from tasks.store import Store, home
from tasks.target import open_target, prepare_target
from tasks.verdict import BadInput
from tasks.verify import HeldOut
from tasks.wiring.record import WiringRecord

if TYPE_CHECKING:
    from tasks.target.model import Target


@dataclass(frozen=True)
class Benched:
    """`steps`: the draft length that it was promoted with."""

    drafter: Path
    target: TargetProduct
    deploy: DeployConfig
    steps: int

    @classmethod
    def champion(cls, model: str) -> Self:
        """Raises BadInput when there is none: `make demo` makes one."""
        from tasks.ledger.store import connect
        from tasks.promote import find_release

        release, _ = find_release(connect(), model)
        return cls(release.drafter, prepare_target(release.target, store=Store(), report=Silent()), release.deploy, release.steps or 1)

    @cached_property
    def opened(self) -> Target:
        return open_target(self.target, dtype="float32")

    def held_out(self, count: int) -> list[HeldOut]:
        """The first `count` held-out conversations of the data that the drafter was trained on, from the cache."""
        wanted = WiringRecord.read(self.drafter).data_sha256
        for note in (home() / "cache" / "data").glob("*/product.json"):
            product = json.loads(note.read_text())["product"]
            if product["sha256"] == wanted:
                data = DataProduct(folder=note.parent, **product)
                rows = data.rows()[data.train : data.train + count]
                return [HeldOut(id=row.id, tokens=row.tokens, spans=row.spans) for row in rows]
        raise BadInput(
            str(home() / "cache" / "data"),
            found=f"no conversations with SHA-256 {wanted[:16]}…",
            expected="the data that the drafter was trained on",
            do="Run `make demo` with this DRAFTPROOF_HOME.",
        )
