"""What verification is given beside the checkpoint, and what it finds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

from tasks.statistics import Interval
from tasks.verdict import Verdict

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class HeldOut:
    """A conversation that was never trained on.

    Shapes: S tokens, n features, H hidden size. Without `features_SnH` and `last_state_SH` the target computes them.
    """

    id: str
    tokens: list[int]
    spans: list[tuple[int, int]] = field(default_factory=list)
    features_SnH: torch.Tensor | None = None
    last_state_SH: torch.Tensor | None = None


@dataclass(frozen=True)
class Served:
    """One greedy request to a speculative server: its tokens and its counts."""

    prompt: list[int]
    answer: list[int]
    verify_rounds: int
    right_drafts: int


@dataclass(frozen=True)
class Texts:
    """Greedy answers of a plain and of a speculative server to one prompt."""

    prompt: list[int]
    plain: list[int]
    speculative: list[int]


class _Result(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class StepAccuracy(_Result):
    """One draft step over the held-out supervised positions (definitions: `design.md`), with the counts behind it."""

    step: int
    positions: int
    right: int = Field(description="Steps 0..k all right; label = the target's argmax within the draft vocabulary.")
    right_full: int = Field(description="As `right`, against the target's own argmax over its whole vocabulary.")
    near_ties: int = Field(description="Positions whose count another rounding of the same numbers could change.")
    accuracy: Interval
    accuracy_full: Interval


class StepParity(_Result):
    """One draft step against the trainer's own logits."""

    step: int
    positions: int
    max_difference: float
    argmax_equal: int


class Prediction(_Result):
    """Greedy decoding with `steps` draft steps, simulated as SGLang counts it: a chain, or a tree (topk > 1)."""

    steps: int
    topk: int = 1
    draft_tokens: int | None = Field(default=None, description="Verified per round; null = steps + 1, a chain's.")
    near_ties: int = Field(default=0, description="Rounds in which a server's rounding could verify another tree.")
    output_tokens: int
    verify_rounds: int
    right_drafts: int
    histogram: list[int] = Field(description="Entry i: verify rounds in which exactly i drafts were right.")
    accept_length: Interval = Field(description="1 + right drafts / verify rounds; interval over prompts.")
    per_prompt: list[PromptCounts] = Field(description="In the order of the prompts.")

    @property
    def shape(self) -> str:
        """`steps3`, or of a tree `steps3_topk4_tokens8`: as part of a metric's name, for no two of them to share one."""
        return f"steps{self.steps}" + (f"_topk{self.topk}_tokens{self.draft_tokens}" if self.topk > 1 else "")


class PromptCounts(_Result):
    output_tokens: int
    verify_rounds: int
    histogram: list[int]


class HypothesisResult(_Result):
    """One known mis-wiring, and how well it explains the numbers."""

    name: str
    kind: str
    score: float = Field(description="Logit parity: largest difference under it. Likelihood: mean log-likelihood per token gained by it.")
    p_value: float | None = Field(
        default=None,
        description="Paired over conversations; null where the logits decide.",
    )
    fits: bool
    do: str


class Diagnosis(_Result):
    method: str = Field(description="`logits` or `likelihood`.")
    positions: int
    conversations: int
    hypotheses: list[HypothesisResult] = Field(description="Best first.")
    named: list[str] = Field(description="The one that fits, or all that cannot be told apart; empty = none fits.")
    message: str

    @property
    def hypothesis(self) -> str | None:
        """What is named, in words."""
        return " or ".join(self.named) or None


class Verification(_Result):
    """Everything that verification measured; `verdict` has every check with its numbers."""

    verdict: Verdict
    metrics: dict[str, float] = Field(description="Named as `design.md` names them: verify.accuracy_step<k>, verify.max_logit_diff, …")
    steps: list[StepAccuracy]
    parity: list[StepParity] | None = Field(description="null = neither trainer's logits nor golden probes to compare with.")
    max_logit_difference: float | None
    outside_draft_vocabulary: Interval | None = Field(description="Share of the target's own tokens that the drafter cannot propose.")
    predictions: list[Prediction]
    diagnosis: Diagnosis | None = None
    device: str
    seconds: float

    def prediction(self, steps: int) -> Prediction:
        """That of the chain. Raises KeyError for a draft length that was not simulated."""
        for prediction in self.predictions:
            if prediction.steps == steps and prediction.topk == 1:
                return prediction
        raise KeyError(steps)
