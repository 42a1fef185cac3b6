"""`python -m draftproof_sglang.cpu.serve …`: `python -m sglang.launch_server …`, started sooner.

Imports are most of a start on a CPU, in each of SGLang's three processes. What is hidden here is optional to those who
import it and of no use on a CPU: measured for sglang 0.5.23, the scheduler's imports take 7.4 s of CPU time in place of
11.3, and 290 MB less. Spawned processes import the main module first, so it is hidden in them as well.
"""

from __future__ import annotations

import sys

# Kernels for GPUs; and what transformers, torch and datasets import only because it is installed.
HIDDEN = ("flashinfer", "cutlass", "triton_kernels", "sklearn", "scipy", "pandas", "pyarrow", "matplotlib")


def hide() -> None:
    """Make each hidden package look as if it were not installed; one that is imported already stays."""
    for name in HIDDEN:
        # None in sys.modules: `import` raises ModuleNotFoundError, `importlib.util.find_spec` returns None.
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]


hide()

if __name__ == "__main__":
    import runpy

    runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=False)
