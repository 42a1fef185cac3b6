"""Conversations as tokens, by the target's own chat template, and which of them are the answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from tasks.data.raw import Message
from tasks.products import TargetProduct
from tasks.verdict import BadInput, Outcome, ProofFailed, Verdict
from tasks.wiring.kinds import Kind


@dataclass(frozen=True)
class Tokenised:
    tokens: list[int]
    spans: list[tuple[int, int]]
    prompt_length: int


class Chat:
    """The target's tokenizer and chat template."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    @classmethod
    def load(cls, target: TargetProduct) -> Self:
        """Raises BadInput for a tokenizer that cannot be loaded."""
        from transformers import AutoTokenizer

        try:
            return cls(AutoTokenizer.from_pretrained(target.folder, local_files_only=True, trust_remote_code=target.trust_remote_code))
        except Exception as error:  # tokenizers raises bare ones
            found = f"a tokenizer that cannot be loaded ({type(error).__name__}: {error})"
            raise BadInput(str(target.folder), found=found, expected="a target's tokenizer files", do="Fetch them again.") from error

    def prompt(self, messages: list[Message]) -> list[int]:
        """The conversation up to where the assistant's turn begins."""
        return self._render(messages, add_generation_prompt=True)

    def answered(self, messages: list[Message], where: str) -> Tokenised:
        """A conversation with its own answers: every assistant turn is a span, its end-of-turn token included.

        Raises ProofFailed (kind `loss-mask`) when a span is not what the assistant said.
        """
        turns = [i for i, m in enumerate(messages) if m["role"] == "assistant"]
        tokens = self._render(messages[: turns[-1] + 1])
        spans = []
        for turn in turns:
            before, after = self.prompt(messages[:turn]), self._render(messages[: turn + 1])
            if tokens[: len(before)] != before or tokens[: len(after)] != after:
                raise _wrong(where, "the chat template writes earlier turns otherwise once later ones follow", turn)
            end = self._end_of_turn(after, len(before))
            said = self._tokenizer.decode(tokens[len(before) : end], skip_special_tokens=True)
            if said.strip() != messages[turn]["content"].strip():
                raise _wrong(where, f"the supervised tokens say {said[:80]!r}, the assistant {messages[turn]['content'][:80]!r}", turn)
            spans.append((len(before), end))
        return Tokenised(tokens[: spans[-1][1]], spans, prompt_length=spans[-1][0])

    def _end_of_turn(self, tokens: list[int], start: int) -> int:
        """Behind the turn's last end-of-sequence token; what the template writes after it is not the assistant's."""
        eos = self._tokenizer.eos_token_id
        return next((i + 1 for i in range(len(tokens) - 1, start - 1, -1) if tokens[i] == eos), len(tokens))

    def _render(self, messages: list[Message], *, add_generation_prompt: bool = False) -> list[int]:
        """Raises BadInput where the template refuses, or tries what its sandbox forbids (transformers, utils/chat_template_utils.py)."""
        try:
            # transformers 5 returns a dict here, not a list (huggingface/transformers#42567).
            rendered = self._tokenizer.apply_chat_template(
                messages, add_generation_prompt=add_generation_prompt, tokenize=True, return_dict=True
            )
        except Exception as error:  # a template is somebody's program: it may raise anything
            raise BadInput(
                "the target's chat template",
                found=f"{type(error).__name__}: {error}",
                expected="a template that writes these turns",
                do=f"It was given {', '.join(m['role'] for m in messages) or 'no turns'}: mend the conversation, or the template.",
            ) from error
        return list(rendered["input_ids"])


def _wrong(where: str, message: str, turn: int) -> ProofFailed:
    return ProofFailed(
        Verdict(
            verdict=Outcome.FAIL,
            kind=Kind.LOSS_MASK,
            stage="data",
            message=f"{where}, turn {turn}: {message}. Use answers: generate, or a chat template that keeps earlier turns.",
            evidence={"where": where, "turn": turn},
        )
    )
