"""One verification of a drafter on disk, shared by the command line and the flow: what is asked, computed and kept."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, overload

from flows.outcome import RunReport
from tasks.config import SCHEMES, Device, TargetConfig, VerifyConfig
from tasks.report import Report
from tasks.store import Store
from tasks.verdict import BadInput

if TYPE_CHECKING:
    from tasks.products import TargetProduct
    from tasks.verify import HeldOut, Verification
    from tasks.wiring.answering import AnswerEngine

# Written for this file and in the genre of the demo's data, so that no drafter has been trained on them.
BUILTIN_PROMPTS = Path(__file__).resolve().parent / "prompts.jsonl"
# So many tokens give the accuracy to about four points, in half a minute on two cores for a 135M target.
_PROMPTS, _ANSWER_TOKENS = 16, 48
_LONGEST_PROMPT = 1024  # tokens; a round over a longer one costs seconds on a CPU
_STEPS = (1, 2, 3, 4)


@dataclass(frozen=True)
class Asked:
    """A drafter's folder, its target (folder, `pypi:` or `hub:`), and prompts of one's own, if any."""

    checkpoint: Path
    target: str
    prompts: Path | None = None
    device: Device = "auto"

    @property
    def target_config(self) -> TargetConfig:
        """The target, named by the last part of where it comes from."""
        local = self.target if self.target.startswith(SCHEMES) else str(Path(self.target).expanduser().resolve())
        name = re.sub(r"[^a-z0-9._-]+", "-", local.rpartition(":")[2].rpartition("/")[2].lower()).lstrip("._-")
        return TargetConfig(source=local, name=name or "target")


@dataclass(frozen=True)
class Verified:
    """What was found, of which drafter and target."""

    asked: Asked
    target: TargetProduct
    found: Verification

    def report(self, run_id: str | None) -> RunReport:
        """`run_id`: the run in MLflow, if it was kept there."""
        return RunReport.of_verdict(
            self.found.verdict,
            drafter=self.asked.checkpoint,
            target=self.target.folder,
            metrics=self.found.metrics,
            mlflow_run_id=run_id,
        )


def verify_checkpoint(asked: Asked, report: Report) -> Verified:
    """Raises BadInput (no such folder, prompts or target; an unreadable checkpoint) and MachineTrouble."""
    from tasks.data import read_prompts
    from tasks.target import open_target, prepare_target
    from tasks.verify import verify_drafter

    if not asked.checkpoint.is_dir():
        raise BadInput(str(asked.checkpoint), found="no folder", expected="the folder of an EAGLE-3 drafter", do="Name the checkpoint.")
    product = prepare_target(asked.target_config, store=Store(), report=report)
    prompts = read_prompts(asked.prompts or BUILTIN_PROMPTS, target=product, count=_PROMPTS, longest=_LONGEST_PROMPT)
    target = open_target(product, device=asked.device, dtype="float32")
    found = verify_drafter(
        VerifyConfig(device=asked.device),
        checkpoint=asked.checkpoint,
        target=target,
        held_out=Answered(target, prompts, report),
        trainer_logits=None,
        trainer_steps=None,
        prompts=prompts,
        max_new_tokens=_ANSWER_TOKENS,
        steps=_STEPS,
        report=report,
    )
    return Verified(asked, product, found)


class Answered(Sequence["HeldOut"]):
    """The target's own answers to prompts, given together when the first one is looked at: what fails before needs none."""

    def __init__(self, engine: AnswerEngine, prompts: Sequence[list[int]], report: Report) -> None:
        self._engine, self._prompts, self._report = engine, prompts, report

    def __len__(self) -> int:
        return len(self._prompts)

    @overload
    def __getitem__(self, index: int) -> HeldOut: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[HeldOut]: ...

    def __getitem__(self, index: int | slice) -> HeldOut | Sequence[HeldOut]:
        return self._all[index]

    @cached_property
    def _all(self) -> list[HeldOut]:
        return sorted(self._answers(), key=lambda item: int(item.id))

    def _answers(self) -> Iterator[HeldOut]:
        from tasks.verify import HeldOut

        for done, answer in enumerate(self._engine.answer(self._prompts, _ANSWER_TOKENS), 1):
            prompt_length = len(self._prompts[answer.index])
            yield HeldOut(id=str(answer.index), tokens=answer.tokens, spans=[(prompt_length, len(answer.tokens))])
            self._report.progress(done, len(self._prompts), "prompts answered")


def keep(verified: Verified, *, flow_run_id: str = "") -> str:
    """Log a verification to MLflow, as a run of its own in the target's experiment. Returns the run's id.

    It is logged when it has ended: of one that did not end there is nothing to keep. Raises BadInput and
    MachineTrouble for a store that cannot be used.
    """
    from flows.story import describe, title
    from tasks.ledger import open_ledger
    from tasks.verify import render
    from tasks.verify.plot import plot

    found = verified.found
    tags = {
        "draftproof.flow_run_id": flow_run_id,
        "draftproof.drafter": str(verified.asked.checkpoint),
        "draftproof.target_sha256": verified.target.sha256,
        "draftproof.verify_device": found.device,
    }
    name = f"{title(verified.report(None))} verify {time.strftime('%Y-%m-%d %H:%M:%S')}"
    with open_ledger(verified.target.name).run(name, tags) as run:
        run.log({**found.metrics, "verify.seconds": found.seconds})
        run.verdict(found.verdict)
        what = f"The drafter `{verified.asked.checkpoint}` proved alone, against the target `{verified.asked.target}`."
        run.describe(f"{describe(verified.report(run.id))}\n\n{what} All checks and hypotheses are in `report.md`.")
        run.text("report.md", render(found))
        run.text("verification.json", found.model_dump_json(indent=1))
        run.text("plot.html", plot(found))
    return run.id
