"""The stage as a whole, on a tiny target, with the real library."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

from tasks.config import TrainConfig
from tasks.products import CaptureProduct, Conversation, DataProduct, TargetProduct, TrainProduct
from tasks.report import Silent
from tasks.store import Store, sha256_file
from tasks.train import train_drafter
from tasks.train.drafter import library_arguments
from tasks.verdict import BadInput, ProofFailed
from tasks.wiring.record import WiringRecord
from tests.train.features import BOUNDARIES, make_capture, make_data, target_product

CONFIG = TrainConfig(
    draft_vocab_size=32, epochs=2, tokens_per_batch=128, save_every_steps=2, log_every_steps=1, dtype="float32", device="cpu"
)


@dataclass
class Heard(Silent):
    points: list[tuple[dict[str, float], int]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    done: list[tuple[float, float, str]] = field(default_factory=list)

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        self.points.append((dict(values), step))

    def say(self, text: str) -> None:
        self.said.append(text)

    def progress(self, done: float, total: float, unit: str, measured: Mapping[str, float] | None = None) -> None:
        self.done.append((done, total, unit))


@dataclass(frozen=True)
class Inputs:
    data: DataProduct
    capture: CaptureProduct
    target: TargetProduct

    def train(self, store: Path, config: TrainConfig = CONFIG, report: Silent | None = None) -> TrainProduct:
        return train_drafter(
            config,
            seed=3,
            data=self.data,
            capture=self.capture,
            target=self.target,
            parity_rows=2,
            store=Store(store),
            report=report or Silent(),
        )


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Matrices this small only wait for a second thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def inputs(tiny_target: Path, tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    folder, target = tmp_path_factory.mktemp("inputs"), target_product(tiny_target)
    data = make_data(folder / "data")
    return Inputs(data, make_capture(folder / "capture", data, target), target)


@pytest.fixture(scope="module")
def heard() -> Heard:
    return Heard()


@pytest.fixture(scope="module")
def product(inputs: Inputs, heard: Heard, tmp_path_factory: pytest.TempPathFactory) -> TrainProduct:
    return inputs.train(tmp_path_factory.mktemp("uninterrupted"), report=heard)


def test_product_is_whole(product: TrainProduct) -> None:
    assert sorted(path.name for path in product.folder.iterdir()) == ["checkpoint", "product.json", "trainer_logits"]
    assert not list(product.folder.rglob("*.pt")), "no pickle is left behind"
    assert product.logits_rows == [12, 13], "the first held-out rows"
    assert product.train_tokens_per_second > 0 and product.optimizer_steps >= 2 * 3


def test_counts_are_those_of_the_held_out_rows(product: TrainProduct, inputs: Inputs) -> None:
    """Supervised are the answers, all of them longer than the masked beginning of a row."""
    lines = inputs.data.conversations.read_text().splitlines()[inputs.data.train :]
    answers = [Conversation.model_validate_json(line).spans[0] for line in lines]
    assert [step.positions for step in product.steps] == [sum(stop - start for start, stop in answers)] * CONFIG.ttt_steps
    assert product.steps[0].right >= product.steps[1].right >= product.steps[2].right
    assert all(step.right_full is not None and step.right_full <= step.right for step in product.steps)


def test_logits_are_as_documented(product: TrainProduct, inputs: Inputs) -> None:
    checkpoint = load_file(product.folder / "checkpoint" / "model.safetensors")
    draft_size = len(checkpoint["d2t"])
    for row in product.logits_rows:
        tensors = load_file(product.folder / "trainer_logits" / f"{row}.safetensors")
        length = len(tensors["token_ids"])
        assert tensors["logits"].shape == (CONFIG.ttt_steps, length - 1, draft_size) and tensors["logits"].dtype == torch.float32
        captured = load_file(inputs.capture.folder / "hidden_states" / f"hs_{row}.safetensors")
        assert torch.equal(tensors["features"], captured["hidden_states"][:, :-1])
        assert torch.isfinite(tensors["logits"]).all()


def test_every_row_s_logits_give_the_counts(inputs: Inputs, product: TrainProduct, tmp_path: Path) -> None:
    """Logits of all held-out rows, with labels from the target's norm and head, give each step's count once more."""
    store = tmp_path / "all"
    whole = train_drafter(
        CONFIG,
        seed=3,
        data=inputs.data,
        capture=inputs.capture,
        target=inputs.target,
        parity_rows=99,
        store=Store(store),
        report=Silent(),
    )
    assert whole.steps == product.steps and len(whole.logits_rows) == inputs.data.held_out
    model = LlamaForCausalLM.from_pretrained(inputs.target.folder).eval()
    d2t = load_file(whole.folder / "checkpoint" / "model.safetensors")["d2t"]
    ids = d2t + torch.arange(len(d2t))
    right, right_full = [0] * CONFIG.ttt_steps, [0] * CONFIG.ttt_steps
    conversations = [Conversation.model_validate_json(line) for line in inputs.data.conversations.read_text().splitlines()]
    for row in whole.logits_rows:
        logits_KSV = load_file(whole.folder / "trainer_logits" / f"{row}.safetensors")["logits"]
        captured = load_file(inputs.capture.folder / "hidden_states" / f"hs_{row}.safetensors")["hidden_states"]
        with torch.inference_mode():
            wanted = model.lm_head(model.model.norm(captured[1:, -1].float()))
        start, stop = conversations[row].spans[0]
        for counts, labels in ((right, ids[wanted[:, ids].argmax(-1)]), (right_full, wanted.argmax(-1))):
            for j in range(start - 1, stop - 1):  # position j supervises token j + 1
                for k in range(min(CONFIG.ttt_steps, stop - 1 - j)):
                    if ids[logits_KSV[k, j].argmax()] != labels[j + k]:
                        break
                    counts[k] += 1
    assert right == [step.right for step in whole.steps]
    assert right_full == [step.right_full for step in whole.steps]


def test_wiring_record_is_extended(product: TrainProduct, inputs: Inputs) -> None:
    record = WiringRecord.read(product.folder / "checkpoint")
    captured = WiringRecord.read(inputs.capture.folder)
    assert record.features == captured.features and record.target == captured.target
    assert record.draft is not None and record.draft.rope.theta == 10000.0 and record.draft.head_dim == 16
    assert record.vocab_map is not None and (record.vocab_map.draft_size, record.vocab_map.target_size) == (32, 96)
    assert record.features.boundaries == BOUNDARIES


def test_curves_and_progress(product: TrainProduct, heard: Heard) -> None:
    training = [(values, step) for values, step in heard.points if "loss" in values]
    assert [step for _, step in training] == list(range(product.optimizer_steps))
    assert {"loss", "accuracy_step0", "accuracy_step2", "learning_rate"} <= set(training[0][0])
    assert sum("held_out_loss" in values for values, _ in heard.points) == CONFIG.epochs
    steps = [(done, total) for done, total, unit in heard.done if unit == "steps"]
    assert steps[-1] == (product.optimizer_steps, product.optimizer_steps)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_drafter_learns(inputs: Inputs, tmp_path: Path, optimizer: str) -> None:
    heard = Heard()
    inputs.train(tmp_path, CONFIG.model_copy(update={"epochs": 15, "optimizer": optimizer}), heard)
    losses = [values["loss"] for values, _ in heard.points if "loss" in values]
    assert losses[-1] < 0.7 * losses[0]


def test_same_inputs_give_the_same_bytes_and_a_hit(product: TrainProduct, inputs: Inputs, tmp_path: Path) -> None:
    again = inputs.train(tmp_path)
    assert weights_hash(again) == weights_hash(product)
    heard = Heard()
    assert inputs.train(tmp_path, report=heard) == again and not heard.points, "a hit trains nothing"


def weights_hash(product: TrainProduct) -> str:
    return sha256_file(product.folder / "checkpoint" / "model.safetensors")


INTERRUPTED = """
import os, signal, sys, torch
torch.set_num_threads(1)
from pathlib import Path
from tasks.products import CaptureProduct, DataProduct, TargetProduct
from tests.train.test_train import Inputs, Heard

class Killing(Heard):
    def progress(self, done, total, unit, measured=None):
        if unit == "steps" and done == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)

read = lambda kind, text: kind.model_validate_json(text)
inputs = Inputs(read(DataProduct, sys.argv[3]), read(CaptureProduct, sys.argv[4]), read(TargetProduct, sys.argv[5]))
inputs.train(Path(sys.argv[1]), report=Killing())
"""


@pytest.mark.parametrize(("killed_at", "goes_on_from"), [(3, 2), (4, 3)], ids=["inside of an epoch", "after an epoch"])
def test_killed_and_resumed_gives_the_same_bytes(
    product: TrainProduct, inputs: Inputs, tmp_path: Path, killed_at: int, goes_on_from: int
) -> None:
    described = [part.model_dump_json() for part in (inputs.data, inputs.capture, inputs.target)]
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path), str(killed_at), *described]
    killed = subprocess.run(command, cwd=Path(__file__).parents[2], env=os.environ.copy(), capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    heard = Heard()
    resumed = inputs.train(tmp_path, report=heard)
    assert any(f"goes on from step {goes_on_from} of" in line for line in heard.said), heard.said
    assert weights_hash(resumed) == weights_hash(product)
    assert resumed.optimizer_steps == product.optimizer_steps


def test_lost_features_are_a_failure(inputs: Inputs, tmp_path: Path) -> None:
    capture = make_capture(tmp_path / "capture", inputs.data, inputs.target)
    path = capture.folder / "hidden_states" / "hs_5.safetensors"
    other = {name: tensor.clone() for name, tensor in load_file(path).items()}
    other["token_ids"][3] += 1
    save_file(other, path)
    with pytest.raises(ProofFailed, match="row 5: features of other tokens") as raised:
        Inputs(inputs.data, capture.model_copy(update={"sha256": "other"}), inputs.target).train(tmp_path)
    assert raised.value.verdict.kind == "silent-loss"


@pytest.mark.parametrize(
    ("change", "named"),
    [({"draft_vocab_size": 97}, "train.draft_vocab_size"), ({"tokens_per_batch": 20}, "train.tokens_per_batch")],
)
def test_bad_config(inputs: Inputs, tmp_path: Path, change: dict[str, int], named: str) -> None:
    with pytest.raises(BadInput, match=named):
        inputs.train(tmp_path, CONFIG.model_copy(update=change))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_cuda_without_a_gpu(inputs: Inputs, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cuda"):
        inputs.train(tmp_path, CONFIG.model_copy(update={"device": "cuda"}))


def test_wiring_of_other_boundaries_is_refused(inputs: Inputs, tmp_path: Path) -> None:
    other = inputs.capture.model_copy(update={"boundaries": [1, 2, 4]})
    with pytest.raises(BadInput, match="boundaries"):
        Inputs(inputs.data, other, inputs.target).train(tmp_path)


@pytest.mark.parametrize("allowed", [False, True])
def test_the_targets_own_python_runs_only_when_the_config_says_so(inputs: Inputs, allowed: bool) -> None:
    target = inputs.target.model_copy(update={"trust_remote_code": allowed})
    arguments = library_arguments(CONFIG, target=target, boundaries=BOUNDARIES, draft_size=32, device="cpu")
    assert arguments["trust_remote_code"] is allowed


def test_names_in_the_checkpoint(product: TrainProduct) -> None:
    """Export and the standalone drafter read these names."""
    with safe_open(product.folder / "checkpoint" / "model.safetensors", framework="pt") as file:
        names = set(file.keys())
    assert {"fc.weight", "lm_head.weight", "d2t", "t2d", "layers.0.hidden_norm.weight"} <= names


def test_a_drafter_from_the_store_needs_no_library_that_trains() -> None:
    asked = "import sys, tasks.train.stage; print(sorted({'speculators', 'transformers', 'datasets'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "[]\n"
