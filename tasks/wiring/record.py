"""The wiring record, `wiring.json`: written at capture, carried and checked by each later stage."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from tasks.store import read_small, write_atomic
from tasks.verdict import BadInput

FILE = "wiring.json"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TargetPrint(_Part):
    """A hash of everything of the target that the drafter depends on (hex SHA-256 each)."""

    config: str
    weights: str = Field(description="Over the index (names, shapes, dtypes, offsets) and the bytes of the weights.")
    tokenizer: str
    chat_template: str
    family: str = Field(description="`model_type` of its config.")
    num_layers: int
    hidden_size: int
    vocab_size: int


class Features(_Part):
    boundaries: list[int] = Field(description="Ordered as they are concatenated.")
    dtype: Literal["bfloat16", "float32"] = Field(description="As stored and trained on.")
    compute_dtype: Literal["bfloat16", "float32"] = Field(description="What the target computed in.")
    last_state: Literal["before-final-norm"] = "before-final-norm"


class Rope(_Part):
    """Resolved values, not raw keys."""

    theta: float
    type: str = "default"
    head_dim: int
    scaling: dict[str, Any] = Field(default_factory=dict)


class Draft(_Part):
    """The drafter's architecture with every flag explicit."""

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    hidden_act: str
    max_position_embeddings: int
    rope: Rope
    norm_before_residual: Literal[False] = False
    norm_before_fc: bool
    fc_norm: bool
    norm_output: bool
    attention_bias: Literal[False] = False
    mlp_bias: Literal[False] = False
    attention_window: int | None = Field(default=None, description="null = full attention.")
    ttt_steps: int


class VocabMap(_Part):
    draft_size: int
    target_size: int
    encoding: Literal["offset"] = Field(default="offset", description="target id = draft id + d2t[draft id].")
    sha256: str = Field(description="Over the int64 target ids, little-endian, in draft order.")


class WiringRecord(_Part):
    """What was wired, from capture on; `draft` and `vocab_map` are added by training, `weights` by export."""

    format: Literal[1] = 1
    target: TargetPrint
    features: Features
    token_alignment: Literal["embed(x[t+1]) with feature[t] predicts x[t+2]"] = "embed(x[t+1]) with feature[t] predicts x[t+2]"
    data_sha256: str
    draft: Draft | None = None
    vocab_map: VocabMap | None = None
    weights: dict[str, str] | None = Field(default=None, description="SHA-256 of each of the drafter's weights (`tasks.wiring.weights`).")
    versions: dict[str, str | None] = Field(default_factory=dict)

    def write(self, folder: Path) -> None:
        write_atomic(folder / FILE, self.model_dump_json(indent=1) + "\n")

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Raises BadInput when the file is missing, larger than 1 MiB, no JSON, or has unknown or missing keys."""
        path = folder / FILE
        try:
            return cls.model_validate_json(read_small(path))
        except (OSError, ValueError) as error:  # pydantic's ValidationError and UnicodeDecodeError are ValueErrors
            raise BadInput(
                str(path), found=str(error).splitlines()[0], expected="a wiring record", do="Export the drafter again."
            ) from error
