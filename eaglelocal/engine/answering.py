"""One answer in the making: sampler, text, counters, times. Everything per request that is not tokens."""

from __future__ import annotations

from dataclasses import dataclass, field

from eaglelocal.core.draft import Verdict
from eaglelocal.core.events import Piece
from eaglelocal.core.ports import Sampler, Vocabulary
from eaglelocal.core.sequence import Sequence
from eaglelocal.core.stats import SpeculationCounter, Timings
from eaglelocal.text.answer import AnswerText


@dataclass(slots=True)
class Clock:
    """Moments and sums of one answer, in seconds."""

    submitted_at: float
    admitted_at: float = 0.0
    first_at: float = 0.0
    last_at: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0
    host_s: float = 0.0
    plain_s: float = 0.0  # what its tokens after the first would have taken, one row a step

    def timings(self, num_tokens: int) -> Timings:
        decode_s = self.last_at - self.first_at
        return Timings(
            ttft_s=max(self.first_at - self.submitted_at, 0.0),
            prefill_s=max(self.first_at - self.admitted_at, 0.0),
            decode_s=decode_s,
            draft_s=self.draft_s,
            verify_s=self.verify_s,
            host_s=self.host_s,
            decode_tok_s=(num_tokens - 1) / decode_s if decode_s > 0 else 0.0,
        )


@dataclass(slots=True)
class Answering:
    """A sequence with what is needed to sample it and to tell about it."""

    sequence: Sequence
    sampler: Sampler
    text: AnswerText
    clock: Clock
    counter: SpeculationCounter = field(default_factory=SpeculationCounter)

    @property
    def request_id(self) -> str:
        return self.sequence.request.id

    def take(self, verdict: Verdict, vocabulary: Vocabulary) -> tuple[tuple[Piece, ...], str | None]:
        """Emit the verdict's tokens: the pieces of text, and the finish reason if the answer ends here."""
        params = self.sequence.request.params
        pieces: list[Piece] = []
        for i, sampled in enumerate(verdict.samples):
            self.sequence.tokens.append(sampled.token)
            if vocabulary.is_end(sampled.token) and not params.ignore_eos:
                pieces.append(Piece(sampled.token, "", i < verdict.num_accepted))
                return tuple(pieces), "stop"
            said = self.text.push(sampled.token)
            logprobs = sampled if params.logprobs is not None else None
            pieces.append(Piece(sampled.token, said.text, i < verdict.num_accepted, logprobs))
            if said.stopped:
                return tuple(pieces), "stop"
        return tuple(pieces), "length" if self.sequence.num_left <= 0 else None

    def speedup(self, decode_s: float) -> float | None:
        """How much faster than one row a step, by the measured cost of such steps."""
        return self.clock.plain_s / decode_s if self.clock.plain_s > 0 and decode_s > 0 else None
