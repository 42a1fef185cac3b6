"""The proof runs where neither speculators nor SGLang nor transformers is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.verify.drafters import HIDDEN, VOCAB, random_drafter

BLOCKED = ("speculators", "sglang", "transformers", "tokenizers", "datasets", "prefect", "mlflow", "accelerate")
SCRIPT = """
import sys
from pathlib import Path

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"{{name}} is blocked")

sys.meta_path.insert(0, Blocker())
import pkgutil, importlib, torch
import tasks.verify
for module in pkgutil.iter_modules(tasks.verify.__path__):
    if module.name != "task":
        importlib.import_module(f"tasks.verify.{{module.name}}")
from tasks.verify.checkpoint import read_checkpoint
from tasks.verify.drafter import load_drafter
drafter = load_drafter(read_checkpoint(Path({folder!r})), torch.randn({vocab}, {hidden}))
final = next(drafter.unroll(torch.arange(9)[None], torch.randn(1, 9, 3, {hidden}), 1))
assert drafter.logits(final).isfinite().all()
assert not set(sys.modules) & set({blocked!r})
print("proved")
"""


def test_the_drafter_runs_with_everything_heavy_blocked(tmp_path: Path) -> None:
    folder = random_drafter(tmp_path)
    script = SCRIPT.format(blocked=BLOCKED, folder=str(folder), vocab=VOCAB, hidden=HIDDEN)
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "proved", done.stderr
