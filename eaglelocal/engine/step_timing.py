"""Times the steps: seconds by part, totals of the engine, and the share of each answer.

A step that follows another directly starts where that one ended, so that emitting, pickling and the pipe count as
host time too. Knows clocks and counters, not the work of a step.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from eaglelocal.core.stats import SpeculationCounter
from eaglelocal.engine.running_answer import RunningAnswer
from eaglelocal.engine.step_times import EngineTotals, StepTimes
from eaglelocal.speculation.costs.step_costs import StepCosts

STATUS = "/proc/self/status"


class StepMarks(NamedTuple):
    """The moments of a step that has ended."""

    started_at: float
    ended_at: float
    native_s: float  # in the native library between them
    marks: list[tuple[float, float]]  # of StepTiming.mark


class StepTiming:
    """The engine's stopwatch and totals. `native_s` gives the seconds spent inside the native library so far."""

    def __init__(self, costs: StepCosts, native_s: Callable[[], float]) -> None:
        self._costs, self.totals, self.counter = costs, EngineTotals(), SpeculationCounter()
        self._native_clock = native_s
        self._ended_at: float | None = None  # end of the previous step, if this one follows at once
        self._started_at = self._native_s = 0.0  # native seconds at the start of the step
        self._marks: list[tuple[float, float]] = []  # (moment, seconds that the drafters' models took so far)

    def begin(self) -> None:
        now = time.perf_counter()
        if self._ended_at is None:
            self._started_at, self._native_s = now, self._native_clock()
        else:
            self._started_at = self._ended_at
        self._marks = [(now, 0.0)]

    def mark(self, drafters_s: float = 0.0) -> None:
        """Mark the end of a part of the step: drafting, decoding, then sampling."""
        self._marks.append((time.perf_counter(), drafters_s))

    def end(self) -> StepMarks:
        """End the step, and return the argument of `measure`. The next step may begin before that call."""
        native_before_s, self._native_s = self._native_s, self._native_clock()
        self._ended_at = time.perf_counter()
        return StepMarks(self._started_at, self._ended_at, self._native_s - native_before_s, self._marks)

    def measure(self, step: StepMarks, *, num_slots: int, num_rows: int, num_drafted: int) -> StepTimes:
        """Return the durations of a step that has ended, and add them to the totals; `num_slots` decoded."""
        started_at, ended_at, native_s, marks = step
        (began_at, _), (drafted_at, drafters_before_s), (decoded_at, drafters_after_s), (sampled_at, _) = marks
        encode_s = drafters_after_s - drafters_before_s  # a head encodes the target's rows within the decode
        decode_s = decoded_at - drafted_at - encode_s
        verify_s = sampled_at - drafted_at - encode_s
        total_s = ended_at - started_at
        host_s = total_s - native_s
        draft_s = drafted_at - began_at + encode_s + ended_at - sampled_at
        self.totals.steps += 1
        self.totals.host_s += host_s
        self.totals.draft_s += draft_s
        self.totals.verify_s += verify_s
        return StepTimes(
            total_s=total_s,
            draft_s=draft_s,
            decode_s=decode_s,
            encode_s=encode_s,
            verify_s=verify_s,
            host_s=host_s,
            plain_s=self._plain_s(total_s, decode_s, num_slots, num_rows, num_drafted),
            ended_at=ended_at,
        )

    def _plain_s(self, total_s: float, decode_s: float, num_slots: int, num_rows: int, num_drafted: int) -> float:
        """Return the estimated duration of the step without drafts, the time outside the decode included.

        Neither part can cost more than with drafts, whatever a busy machine measured.
        """
        plain_s = self._costs.plain_seconds(decode_s, num_rows=num_rows, num_plain_rows=num_rows - num_drafted)
        return min(plain_s, decode_s) + min(self._costs.overhead(False, num_slots), total_s - decode_s)

    def pause(self) -> None:
        """Record that no step follows directly: the time until the next one is waiting, not work."""
        self._ended_at = None

    def restart(self) -> None:
        """Begin the step again, so that the time since the previous one is not learned from."""
        self.pause()
        self.begin()

    def charge(
        self, answer: RunningAnswer, times: StepTimes, *, num_tokens: int, num_drafted: int, num_accepted: int
    ) -> None:
        """Add a step to an answer's counters and times, and to the engine's."""
        for counter in (answer.counter, self.counter):
            counter.add(num_drafted, num_accepted, num_tokens)
        answer_s = answer.clock.charge(times, num_tokens)
        self.totals.generated_tokens += num_tokens
        if answer_s is not None:
            self.totals.plain_s += num_tokens * times.plain_s
            self.totals.answer_s += answer_s


def read_high_water_mark() -> int | None:
    """Return VmHWM, in bytes; None where the system does not report it."""
    try:
        lines = Path(STATUS).read_text(errors="replace").splitlines()
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)
    except (OSError, ValueError, IndexError):
        return None


def peak_rss_bytes() -> int:
    """Return the largest resident size of this process so far.

    On Linux not from getrusage, which also counts the program that this process ran before: a fork of its parent.
    """
    if (peak := read_high_water_mark()) is not None:
        return peak
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
