"""Speculative servers with one fault each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tasks.verdict import MachineTrouble
from tests.benchmark.decoder import Answer, Server


class Faulty(Server):
    """Changes an answer of the speculative server on its way."""

    def stream(self, input_ids: Any, max_new_tokens: int) -> Answer:
        answer = super().stream(input_ids, max_new_tokens)
        return self.change(answer) if self.steps else answer

    def change(self, answer: Answer) -> Answer:
        raise NotImplementedError


class FakesAcceptance(Faulty):
    def change(self, answer: Answer) -> Answer:
        return replace(answer, right_drafts=answer.verify_rounds * ((self.steps or 0) + 1))


class AnswersShort(Faulty):
    def change(self, answer: Answer) -> Answer:
        return replace(answer, tokens=answer.tokens[:-1])


class KeepsItsCache(Faulty):
    def flush_cache(self) -> None:
        if not self.steps:
            super().flush_cache()

    def change(self, answer: Answer) -> Answer:
        return answer


class Diverges(Faulty):
    def change(self, answer: Answer) -> Answer:
        return replace(answer, tokens=[*answer.tokens[:-1], 49 - answer.tokens[-1]])


class FailsNowAndThen(Faulty):
    def change(self, answer: Answer) -> Answer:
        if self.requests % 10 == 0:
            raise MachineTrouble("status 500")
        return answer


class AcceptsLess(Faulty):
    """Served worse than trained: a third of the right drafts is lost, as rounds that bring one token less."""

    def change(self, answer: Answer) -> Answer:
        lost = answer.right_drafts // 3
        return replace(answer, right_drafts=answer.right_drafts - lost, verify_rounds=answer.verify_rounds + lost)


class AcceptsMore(Faulty):
    def change(self, answer: Answer) -> Answer:
        return replace(answer, right_drafts=(self.steps or 0) * answer.verify_rounds)


class Decays(Faulty):
    def change(self, answer: Answer) -> Answer:
        lost = min(answer.right_drafts, self.requests // 8)
        return replace(answer, right_drafts=answer.right_drafts - lost, verify_rounds=answer.verify_rounds + lost)


class DoesNotSpeculate(Faulty):
    def change(self, answer: Answer) -> Answer:
        return replace(answer, verify_rounds=0, right_drafts=0, histogram=())
