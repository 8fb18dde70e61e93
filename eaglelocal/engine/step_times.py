"""Durations: of one step, of one answer, and summed over the engine. Plain data that their own methods change."""

from __future__ import annotations

from eaglelocal.core.records import dataclass
from eaglelocal.core.stats import Timings


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Durations of one step, in seconds."""

    total_s: float
    decode_s: float  # the target's decode
    encode_s: float  # of the drafters' models encoding the decoded rows
    draft_s: float  # drafting, and passing decoded and committed rows to the drafters
    verify_s: float  # the target's decode and sampling
    host_s: float  # outside the native library
    plain_s: float  # what verify_s would have been without the drafted rows
    ended_at: float


@dataclass(slots=True)
class EngineTotals:
    """Sums over all steps of the engine."""

    steps: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0  # prompt tokens found in a cache
    generated_tokens: int = 0
    host_s: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0
    plain_s: float = 0.0  # sum over answers: estimated seconds without drafted rows
    answer_s: float = 0.0  # sum over answers: seconds they took

    def add_prompt(self, num_rows: int) -> None:
        self.prompt_tokens += num_rows

    def add_reused(self, num_rows: int) -> None:
        self.reused_tokens += num_rows

    def add_step(self, *, host_s: float, draft_s: float, verify_s: float) -> None:
        self.steps += 1
        self.host_s += host_s
        self.draft_s += draft_s
        self.verify_s += verify_s

    def add_tokens(self, num_tokens: int, *, plain_s: float, answer_s: float) -> None:
        self.generated_tokens += num_tokens
        self.plain_s += plain_s
        self.answer_s += answer_s

    @property
    def speedup(self) -> float | None:
        """The gain over plain decoding of all answers together; None if nothing was measured."""
        return self.plain_s / self.answer_s if self.plain_s > 0 and self.answer_s > 0 else None


@dataclass(slots=True)
class Clock:
    """Timestamps and accumulated durations of one answer, in seconds."""

    submitted_at: float
    admitted_at: float = 0.0
    first_at: float = 0.0
    last_at: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0
    host_s: float = 0.0
    plain_s: float = 0.0  # estimated duration of the tokens after the first without drafts

    def charge(self, times: StepTimes, num_tokens: int) -> float | None:
        """Add a step that gave this many tokens; return the seconds since the one before, None for the first."""
        previous_at, self.last_at = self.last_at, times.ended_at
        if self.first_at == 0.0:
            self.first_at = times.ended_at
            return None
        self.draft_s += times.draft_s
        self.verify_s += times.verify_s
        self.host_s += times.host_s
        self.plain_s += num_tokens * times.plain_s
        return times.ended_at - previous_at

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
