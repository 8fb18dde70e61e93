"""Ends reasoning that has used up its budget: the sampler is made to draw the words that close it.

They are drawn like any other tokens, so penalties, a constraint and drafters see them. Because they are known before,
the engine decodes all of them in one step, as a draft that is accepted for certain.
"""

from __future__ import annotations

from collections.abc import Sequence

from eaglelocal.core.draft import FORCED, Draft
from eaglelocal.core.ports import Sampler
from eaglelocal.core.request import ReasoningLimit, Request
from eaglelocal.core.sampling import Sampled
from eaglelocal.errors import EagleLocalError
from eaglelocal.text.loop_guard import LoopGuard
from eaglelocal.text.reasoning.split_answer import SplitAnswerText


class ThinkingLimit:
    """A sampler that draws as another one does, and closes reasoning at its limit. Implements core.ports.Sampler.

    text   a reader of the answer's tokens, of its own: the answer's is read later, while the next step is decoded
    guard  of the reasoning: if it repeats itself, its budget is used up; None: it may
    """

    def __init__(
        self, sampler: Sampler, text: SplitAnswerText, limit: ReasoningLimit, guard: LoopGuard | None = None
    ) -> None:
        self._sampler, self._text, self._limit, self._guard = sampler, text, limit, guard
        self._num_tokens = self._num_closed = 0  # tokens of reasoning; how often it was closed
        self.forced: tuple[int, ...] = ()  # the tokens that must come next
        self._is_over = False  # no more reasoning can be closed
        self.accept, self.close, self.force = sampler.accept, sampler.close, sampler.force
        self._check()

    @property
    def problem(self) -> EagleLocalError | None:
        return self._sampler.problem

    def sample(self, row: int) -> Sampled:
        while self.forced:
            token = self.forced[0]
            if drawn := self._sampler.force(row, token):
                self.forced = self.forced[1:]
                self._text.push(token)
                return drawn
            self._is_over = self._num_closed > 1  # a constraint wants something else, after the bare marker too
            self.forced = () if self._is_over else self._next_closing()
        drawn = self._sampler.sample(row)
        if not self._is_over:
            self._check(self._text.push(drawn.token).reasoning)
        return drawn

    def _next_closing(self) -> tuple[int, ...]:
        closings = self._limit.closings
        self._num_closed += 1
        return closings[min(self._num_closed, len(closings)) - 1]

    def _check(self, thought: str = "") -> None:
        """Count a token of reasoning, and close it where it is long enough and no character is cut."""
        self._is_over = self._text.is_past_reasoning
        if not self._text.in_reasoning:
            return
        self._num_tokens += 1
        if self._guard is not None and self._guard.push(thought):
            self._num_tokens += self._limit.budget
        if self._num_tokens > self._limit.budget and self._text.is_at_rest:
            self.forced = self._next_closing()


def make_forced_draft(tokens: Sequence[int], request: Request) -> Draft:
    """Return the tokens that must come next as a draft."""
    drafter = "" if reads_logits(request) else FORCED
    return Draft(tuple(tokens), tuple(range(-1, len(tokens) - 1)), (1.0,) * len(tokens), drafter)


def reads_logits(request: Request) -> bool:
    """Return whether the logits before a token are read even if the token is known."""
    return request.constraint is not None or request.params.logprobs is not None
