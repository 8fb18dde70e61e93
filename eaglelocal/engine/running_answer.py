"""The state of one answer while it runs, beyond its tokens: sampler, text, counters and times."""

from __future__ import annotations

import time
from dataclasses import field
from typing import NamedTuple

from eaglelocal.core.draft import Verdict
from eaglelocal.core.events import Finished, Prompted, RequestEvent, Started, TextPiece
from eaglelocal.core.ports import Sampler, Vocabulary
from eaglelocal.core.records import dataclass
from eaglelocal.core.sampling import Sampled, TokenLogprob
from eaglelocal.core.sequence import Sequence
from eaglelocal.core.stats import SpeculationCounter
from eaglelocal.engine.prompt_tokens import PromptTokens
from eaglelocal.engine.step_times import Clock
from eaglelocal.errors import EagleLocalError
from eaglelocal.text.answer_text import AnswerPiece, AnswerText
from eaglelocal.text.loop_guard import LoopGuard
from eaglelocal.text.reasoning.split_answer import SplitAnswerText


class AnswerProgress(NamedTuple):
    """The pieces that a verdict adds to an answer. If it has a reason or an error, the answer ends here."""

    pieces: tuple[TextPiece, ...]
    reason: str | None = None
    error: EagleLocalError | None = None


@dataclass(slots=True)
class RunningAnswer:
    """A sequence with its sampler, detokenized text, counters and times."""

    sequence: Sequence
    sampler: Sampler
    text: AnswerText | SplitAnswerText
    clock: Clock
    counter: SpeculationCounter = field(default_factory=SpeculationCounter)
    num_tokens: int = 0  # tokens of the text; the sequence may have more, sampled after the stop string
    num_reasoning: int = 0  # of them; the marker that opens it counts too
    num_calls: int = 0
    stop: str = ""  # the stop string that ended it
    guard: LoopGuard | None = None
    _rest: AnswerPiece | None = None  # text that was held back, once the answer has ended

    @property
    def request_id(self) -> str:
        return self.sequence.request.id

    def extend(self, verdict: Verdict, vocabulary: Vocabulary) -> bool:
        """Add the verdict's tokens to the sequence; return whether this ends the answer."""
        tokens = [sampled.token for sampled in verdict.samples]
        self.sequence.tokens.extend(tokens)
        is_end = bool(tokens) and vocabulary.is_end(tokens[-1]) and not self.sequence.request.continues_after_eos
        return is_end or self.sequence.num_left <= 0 or self.sampler.problem is not None

    def append(self, verdict: Verdict, vocabulary: Vocabulary) -> AnswerProgress:
        """Add the texts of the verdict's tokens, by which the sequence was extended.

        Returns the new pieces, and the finish reason if the answer ends here.
        """
        pieces: list[TextPiece] = []
        reason = self._append_pieces(verdict, vocabulary, pieces)
        self.num_tokens += len(pieces)
        if self.sampler.problem is not None and len(pieces) == len(verdict.samples):  # else the answer ended before
            return AnswerProgress(tuple(pieces), error=self.sampler.problem)
        if reason is not None and pieces:
            rest = self.finish_text(is_cut=reason == "length")
            pieces[-1] = pieces[-1]._replace(calls=pieces[-1].calls + rest.calls)
            if rest.stop is not None:
                self.stop, reason = rest.stop, "stop"
        self.num_calls += sum([bool(part.name) for piece in pieces for part in piece.calls])
        if reason == "stop" and self.num_calls:
            reason = "tool_calls"
        return AnswerProgress(tuple(pieces), reason)

    def _append_pieces(self, verdict: Verdict, vocabulary: Vocabulary, pieces: list[TextPiece]) -> str | None:
        """Append one piece per sampled token; return the finish reason if one of them ends the answer."""
        request = self.sequence.request
        has_logprobs = request.params.logprobs is not None
        for i, sampled in enumerate(verdict.samples):
            logprobs = fill_pieces(sampled, vocabulary) if has_logprobs else None
            is_drafted = i < verdict.num_accepted
            if vocabulary.is_end(sampled.token) and not request.continues_after_eos:
                pieces.append(TextPiece(sampled.token, "", is_drafted))
                return "stop"
            piece = self.text.push(sampled.token)
            self.num_reasoning += isinstance(self.text, SplitAnswerText) and self.text.in_reasoning
            pieces.append(TextPiece(sampled.token, piece.text, is_drafted, logprobs, piece.reasoning, piece.calls))
            if piece.stopped:
                self.stop = piece.stop or ""
                return "stop"
            if self.guard is not None and self.guard.push(piece.text, piece.reasoning):
                return "stop"
            if "\n" in piece.text and self._is_late():
                return "length"
        return "length" if self.sequence.num_left <= 0 else None

    def _is_late(self) -> bool:
        limit_s, first_at = self.sequence.request.line_limit_s, self.clock.first_at
        return limit_s is not None and first_at > 0 and time.perf_counter() - first_at > limit_s

    def finish_text(self, *, is_cut: bool) -> AnswerPiece:
        """Return the text still held back when the answer ended.

        is_cut  the answer was cut short (limit or cancel) instead of ending by itself
        """
        if self._rest is None:
            self._rest = self.text.finish(is_cut=is_cut)
        return self._rest

    def speedup(self, decode_s: float) -> float | None:
        """Return estimated seconds without drafts / `decode_s`; None if nothing was measured."""
        return self.clock.plain_s / decode_s if self.clock.plain_s > 0 and decode_s > 0 else None


def fill_pieces(sampled: Sampled, vocabulary: Vocabulary) -> Sampled:
    """Fill in the bytes of the drawn tokens, so that readers need no vocabulary."""
    top = tuple(TokenLogprob(t.token, t.logprob, vocabulary.piece(t.token)) for t in sampled.top)
    return Sampled(sampled.token, sampled.logprob, vocabulary.piece(sampled.token), top)


def make_never_started(request_id: str) -> Finished:
    return _make_empty_answer(request_id, "cancelled", 0, "cancelled before it started")


def make_prompted(request_id: str, prompt: PromptTokens, vocabulary: Vocabulary) -> Prompted:
    """Return the event that shows the model's input."""
    tokens = tuple(token for token in prompt.tokens if token >= 0)  # images have none
    return Prompted(request_id, tokens, tuple(map(vocabulary.spelled, tokens)), prompt.rendered)


def make_count_events(request_id: str, num_prompt: int) -> tuple[RequestEvent, ...]:
    """Return all events of a request that only counts prompt tokens."""
    return Started(request_id, num_prompt, 0), _make_empty_answer(
        request_id, "stop", num_prompt, "nothing was answered"
    )


def _make_empty_answer(request_id: str, reason: str, num_prompt: int, reason_off: str) -> Finished:
    stats = SpeculationCounter().stats(state="off", reason=reason_off, speedup_estimate=None)
    return Finished(request_id, reason, "", num_prompt, 0, Clock(0.0).timings(0), stats)
