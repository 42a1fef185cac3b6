"""What one request to a server brought back, as raw counts."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Generation:
    """A greedy answer and the counts that came with it; divide sums of counts, never averages.

    The token of the prefill is in `tokens` and belongs to no verify round, and the last round may be cut
    by the length limit: acceptance is `1 + right_drafts / verify_rounds`, not `len(tokens) / verify_rounds`.
    """

    tokens: list[int]
    prompt_tokens: int
    cached_tokens: int
    seconds: float = field(metadata={"unit": "seconds from sending the request to the whole answer, by the client's clock"})
    finish_reason: str
    verify_rounds: int = 0
    right_drafts: int = 0
    proposed_drafts: int = 0
    histogram: tuple[int, ...] = ()
    """Verify rounds by number of right drafts in them: index k counts the rounds with k right ones."""
    first_seconds: float = 0.0
    """From sending the request to its first token; 0 = not streamed."""
    first_tokens: int = 0
    """Tokens that came with the first one."""

    @property
    def completion_tokens(self) -> int:
        return len(self.tokens)
