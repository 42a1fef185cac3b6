"""How a speculative server drafts: steps, branches, tokens verified per round; and which of these a config asks to try."""

from __future__ import annotations

from itertools import product
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tasks.config import BenchmarkConfig, DeployConfig


class Setting(BaseModel):
    """A chain (topk 1) or a tree of drafts, as SGLang is asked for it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    steps: int = Field(gt=0)
    topk: int = Field(default=1, gt=0)
    draft_tokens: int = Field(default=0, description="Tokens verified per round, the root included; 0 = steps + 1, a chain's.")

    @model_validator(mode="before")
    @classmethod
    def _chain(cls, given: Any) -> Any:
        if isinstance(given, dict) and not given.get("draft_tokens") and "steps" in given:
            return {**given, "draft_tokens": given["steps"] + 1}
        return given

    @model_validator(mode="after")
    def _possible(self) -> Self:
        """A round verifies the root and at least one path, at most all that was proposed."""
        proposed = self.topk + (self.steps - 1) * self.topk**2
        if not self.steps < self.draft_tokens <= proposed + 1:
            raise ValueError(f"{self.draft_tokens} draft tokens of {self.steps} steps with topk {self.topk}: {proposed} are proposed")
        return self

    def __str__(self) -> str:
        tree = f", topk {self.topk}, {self.draft_tokens} draft tokens" if self.topk > 1 else ""
        return f"{self.steps} step{'s' if self.steps > 1 else ''}{tree}"

    @property
    def name(self) -> str:
        """For file names and columns: `3`, or `3x4x8`."""
        return str(self.steps) if self.topk == 1 else f"{self.steps}x{self.topk}x{self.draft_tokens}"

    def deployed(self, config: DeployConfig) -> DeployConfig:
        """The launch settings with this one in them."""
        return config.model_copy(update={"topk": self.topk, "draft_tokens": self.draft_tokens if self.topk > 1 else None})


def settings_to_try(config: BenchmarkConfig, deploy: DeployConfig) -> list[Setting]:
    """Every possible combination of steps, topk and draft tokens; a chain verifies all that it drafted."""
    found = set()
    sizes = config.draft_tokens or ([deploy.draft_tokens] if deploy.draft_tokens else [])
    for steps, topk, tokens in product(config.steps, config.topk or [deploy.topk], sizes or [0]):
        wanted = tokens if topk > 1 and tokens else steps + 1
        if steps < wanted <= 1 + topk + (steps - 1) * topk**2:
            found.add(Setting(steps=steps, topk=topk, draft_tokens=wanted))
    return sorted(found, key=lambda setting: (setting.topk, setting.steps, setting.draft_tokens))
