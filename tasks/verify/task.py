"""The Prefect task of the proof. The rest of this stage runs where Prefect is not installed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tasks.config import VerifyConfig
from tasks.products import DrafterProduct, TrainProduct
from tasks.stage import StageRun, stage_task
from tasks.store import Store, code_digest, versions
from tasks.verdict import ProofFailed
from tasks.verify import HeldOut, Verification, render, verify_drafter
from tasks.verify.plot import plot
from tasks.wiring.target import TargetForward

_FILE = "verification.json"


@stage_task("verify")
def verify(
    run: StageRun,
    *,
    config: VerifyConfig,
    drafter: DrafterProduct,
    train: TrainProduct,
    features_sha256: str,
    held_out: Sequence[HeldOut],
    open_target: Callable[[], TargetForward],
    device: str,
    prompts: Sequence[list[int]],
    max_new_tokens: int,
    steps: Sequence[int],
    trees: Sequence[tuple[int, int, int]] = (),
    store: Store,
) -> Verification:
    """What the drafter as exported computes, against the trainer; kept by content like every product, whatever it says.

    Raises ProofFailed when a link of the proof is broken.
    """
    key = store.key(
        "verify",
        {
            "config": config.model_dump(mode="json"),
            "drafter": drafter.sha256,
            "train": train.sha256,
            "features": features_sha256,
            "rows": len(held_out),
            "device": device,
            "prompts": [list(prompt) for prompt in prompts],
            "max_new_tokens": max_new_tokens,
            "steps": list(steps),
            "trees": [list(each) for each in trees],
            "code": code_digest("verify", "wiring", "target", "statistics.py", "verdict.py"),
            "versions": versions("torch", "safetensors", "numpy", "scipy", "transformers"),
        },
    )

    def build(folder: Path) -> dict[str, str]:
        made = verify_drafter(
            config,
            checkpoint=drafter.folder,
            target=open_target(),
            held_out=held_out,
            trainer_logits=train.folder / "trainer_logits",
            trainer_steps=train.steps,
            prompts=prompts,
            max_new_tokens=max_new_tokens,
            steps=steps,
            trees=trees,
            report=run,
        )
        (folder / _FILE).write_text(made.model_dump_json(indent=1), encoding="utf-8")
        return {"file": _FILE}

    file = store.folder("verify", key) / str(store.make("verify", key, build)["file"])
    found = Verification.model_validate_json(file.read_text(encoding="utf-8"))
    run.log({name.removeprefix("verify."): value for name, value in found.metrics.items()})
    run.headline(found.metrics)
    run.pipeline_tag({"draftproof.verify_device": found.device})
    run.verdict(found.verdict)
    run.text(_FILE, found.model_dump_json(indent=1))
    run.text("report.md", render(found))
    run.text("plot.html", plot(found))
    if found.verdict.verdict.exit_status:
        raise ProofFailed(found.verdict)
    return found
