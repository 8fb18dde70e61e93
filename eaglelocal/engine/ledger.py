"""What steps take and what that means: seconds by part, totals of the engine, the charge of each answer.

The interval of a step that follows at once begins where the one before ended, so that telling, pickling
and the pipe count as host time too. Knows clocks and counters, nothing of what a step does.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from eaglelocal.core.stats import SpeculationCounter
from eaglelocal.engine.answering import Answering
from eaglelocal.speculation.costs import StepCosts


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Rows and seconds of one step."""

    total_s: float
    decode_s: float  # the target's decode
    shown_s: float  # what drafters' models took to read its rows
    draft_s: float  # drafting, and showing the drafter what was decoded and committed
    verify_s: float  # the target's decode and sampling
    host_s: float  # outside the native library
    plain_s: float  # what verify_s would have been without the drafted rows
    ended_at: float


@dataclass(slots=True)
class Totals:
    steps: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0  # of them, those that a cache held already
    generated_tokens: int = 0
    host_s: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0
    plain_s: float = 0.0  # of answers, each counted for itself
    answer_s: float = 0.0  # likewise

    @property
    def speedup(self) -> float | None:
        """Of all answers, as of one."""
        return self.plain_s / self.answer_s if self.plain_s > 0 and self.answer_s > 0 else None


class Ledger:
    """The engine's stopwatch and its books. `native_s` tells the seconds inside the native library so far."""

    def __init__(self, costs: StepCosts, native_s: Callable[[], float]) -> None:
        self._costs, self.totals, self.counter = costs, Totals(), SpeculationCounter()
        self._native_clock = native_s
        self._ended_at: float | None = None  # of the step before, if this one follows at once
        self._started_at = self._native_s = 0.0  # the latter when the step began
        self._marks: list[tuple[float, float]] = []  # (moment, seconds that the drafters' models took so far)

    def begin(self) -> None:
        now = time.perf_counter()
        if self._ended_at is None:
            self._started_at, self._native_s = now, self._native_clock()
        else:
            self._started_at = self._ended_at
        self._marks = [(now, 0.0)]

    def mark(self, drafters_s: float = 0.0) -> None:
        """A part of the step is over: drafting, decoding, then sampling."""
        self._marks.append((time.perf_counter(), drafters_s))

    def end(self, *, num_rows: int, num_drafted: int) -> StepTimes:
        before_native_s, self._native_s = self._native_s, self._native_clock()
        (began_at, _), (drafted_at, before_s), (decoded_at, after_s), (sampled_at, _) = self._marks
        ended_at = time.perf_counter()
        shown_s = after_s - before_s  # a head reads the target's rows while they lie in its memory
        decode_s = decoded_at - drafted_at - shown_s
        verify_s = sampled_at - drafted_at - shown_s
        host_s = ended_at - self._started_at - (self._native_s - before_native_s)
        total_s = ended_at - self._started_at
        self._ended_at = ended_at
        self.totals.steps += 1
        draft_s = drafted_at - began_at + shown_s + ended_at - sampled_at
        self.totals.host_s += host_s
        self.totals.draft_s += draft_s
        self.totals.verify_s += verify_s
        return StepTimes(
            total_s=total_s,
            draft_s=draft_s,
            decode_s=decode_s,
            shown_s=shown_s,
            verify_s=verify_s,
            host_s=host_s,
            plain_s=self._plain_s(verify_s, num_rows, num_drafted),
            ended_at=ended_at,
        )

    def _plain_s(self, verify_s: float, num_rows: int, num_drafted: int) -> float:
        """Never more than it took: fewer rows are not dearer, whatever ratios say that a busy machine has measured."""
        plain_s = self._costs.plain_seconds(verify_s, num_rows=num_rows, num_plain_rows=num_rows - num_drafted)
        return min(plain_s, verify_s)

    def rest(self) -> None:
        """No step follows: what comes before the next one is waiting, not work."""
        self._ended_at = None

    def begin_anew(self) -> None:
        """What was done since the step before is no part of this one: nothing is to be learned of its seconds."""
        self.rest()
        self.begin()

    def charge(
        self, answer: Answering, times: StepTimes, *, num_tokens: int, num_drafted: int, num_accepted: int
    ) -> None:
        """Enter a step in an answer's books and in the engine's."""
        for counter in (answer.counter, self.counter):
            counter.add(num_drafted, num_accepted, num_tokens)
        self.totals.generated_tokens += num_tokens
        clock = answer.clock
        before, clock.last_at = clock.last_at, times.ended_at
        if clock.first_at == 0.0:
            clock.first_at = times.ended_at
            return
        clock.draft_s += times.draft_s
        clock.verify_s += times.verify_s
        clock.host_s += times.host_s
        clock.plain_s += num_tokens * times.plain_s
        self.totals.plain_s += num_tokens * times.plain_s
        self.totals.answer_s += times.ended_at - before


def peak_rss_bytes() -> int:
    """Largest resident size of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
