"""Ends reasoning that has used up its budget: the sampler is made to draw the words that close it.

They are drawn like any other tokens, so penalties, a constraint and drafters see them. Because they are known before,
the engine decodes all of them in one step, as a draft that is accepted for certain.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from eaglelocal.core.draft import FORCED, Draft
from eaglelocal.core.ports import Sampler
from eaglelocal.core.request import ReasoningLimit, Request
from eaglelocal.core.sampling import Sampled
from eaglelocal.errors import EagleLocalError
from eaglelocal.text.reasoning.split_answer import SplitAnswerText


class ThinkingLimit:
    """A sampler that draws as another one does, and closes reasoning at its limit. Implements core.ports.Sampler.

    text  a reader of the answer's tokens, of its own: the answer's is read later, while the next step is decoded
    """

    def __init__(self, sampler: Sampler, text: SplitAnswerText, limit: ReasoningLimit) -> None:
        self._sampler, self._text, self._limit = sampler, text, limit
        self._num_tokens = 0  # of reasoning
        self._closings = iter(limit.closings)
        self._forced: deque[int] = deque()
        self._is_over = False  # it can force no more
        self.accept, self.close = sampler.accept, sampler.close
        self._check()

    @property
    def problem(self) -> EagleLocalError | None:
        return self._sampler.problem

    @property
    def forced(self) -> tuple[int, ...]:
        """The tokens that must come next."""
        return tuple(self._forced)

    def sample(self, row: int) -> Sampled:
        if self._forced:
            drawn = self._sampler.force(row, self._forced[0])
            if drawn is not None:
                self._text.push(self._forced.popleft())
                return drawn
            self._forced.clear()  # a constraint wants something else
            self._is_over = True
        drawn = self._sampler.sample(row)
        self._text.push(drawn.token)
        self._check()
        return drawn

    def force(self, row: int, token: int) -> Sampled | None:
        return self._sampler.force(row, token)

    def _check(self) -> None:
        """Count a token of reasoning, and close it where it is long enough and no character is cut."""
        if self._is_over or not self._text.in_reasoning:
            return
        self._num_tokens += 1
        if self._num_tokens > self._limit.budget and self._text.is_at_rest:
            self._forced.extend(next(self._closings, self._limit.closings[-1]))


def make_forced_draft(tokens: Sequence[int], request: Request) -> Draft:
    """Return the tokens that must come next as a draft."""
    drafter = "" if reads_logits(request) else FORCED
    return Draft(tuple(tokens), tuple(range(-1, len(tokens) - 1)), (1.0,) * len(tokens), drafter)


def reads_logits(request: Request) -> bool:
    """Return whether the logits before a token are read even if the token is known."""
    return request.constraint is not None or request.params.logprobs is not None
