"""Durations: of one step, of one answer, and summed over the engine. Plain data that their own methods change."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence

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
    plain_s: float  # total_s without drafts, estimated
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
    plain_s: float = 0.0  # sum over answers: estimated seconds without drafts
    answer_s: float = 0.0  # sum over answers: seconds they took

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
        """Add a step that gave num_tokens tokens; return the seconds since the previous step, None for the first."""
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


# ---- calibration: measures what decodes cost on this machine, before the first request and within a time limit
#
# Gets a function that times a decode of n rows, and a clock; needs no context and stores nothing. On a GPU that
# function must wait for the device.
#
# All but the first decodes may wait for idle moments (`iter_decodes`).
#
# 1. one decode that is not counted: it reads the weights from disk. On a GPU one of each size, because kernels are
# compiled or loaded when a size first runs (engine/warmup.py) 2. with a stored curve: one and four rows, in 0.5 s; if
# their ratio still holds, stop here 3. one, two, four and eight rows, three times in turn 4. the other sizes that a
# policy may want, in groups that include one row, until 2 s are over
FIRST_SIZES = (1, 2, 4, 8)
OTHER_SIZES = (3, 5, 6, 16, 12, 7, 10, 9, 14, 11, 13, 15, 17)  # first those where known backends have cost steps
WITH_PROMPTS = (4, 8, 16, 12, 6, 24, 32, 48, 64)  # rows of a step that decodes answers and prefills a prompt
PER_SLOT = (1, 2, 3, 5, 9, 17)  # rows of a slot, when all slots draft equally far
CHECKED_SIZES = (4, 2)  # the first of these that fits is compared with one row
TOLERANCE = 1.2  # a stored ratio holds within this factor
REPETITIONS = 3
GROUP = 4
MAX_PREPARE_S = 2.0  # beyond the first sizes

Seconds = dict[int, list[float]]  # by rows


class Calibration:
    """A single calibration run.

    time_rows  decodes this many rows and returns the seconds
    prepare    does the one-time work of a size's first run; None if that is only reading the weights
    """

    def __init__(
        self,
        time_rows: Callable[[int], float],
        clock: Callable[[], float],
        *,
        sizes: Sequence[int],
        prepare: Callable[[int], object] | None = None,
        max_s: float = 2.0,
        max_check_s: float = 0.5,
        max_decode_s: float = math.inf,
    ) -> None:
        """Set the limits.

        max_decode_s  sizes that are expected to take longer are left out
        """
        self._time_rows, self._clock, self._prepare = time_rows, clock, prepare
        self._sizes = sizes
        self._max_s, self._max_check_s, self._max_decode_s = max_s, max_check_s, max_decode_s
        self._seconds: Seconds = {}
        self._ends_at = 0.0

    def run(self, stored_ratio: Callable[[int], float] | None = None) -> Seconds:
        """Measure and return the seconds by number of rows, one row always included.

        stored_ratio  gives the cost of a size relative to one row, as an earlier run measured it
        """
        if self._prepare is not None:
            self._sizes = list(self._prepare_sizes(self._prepare))
        self._time_rows(1)  # not counted: it includes the head's encoding of the preparations' rows
        for _ in self.iter_decodes(stored_ratio):
            pass
        return self._seconds

    @property
    def seconds(self) -> Seconds:
        """The measured seconds by rows; complete once `iter_decodes` has ended."""
        return self._seconds

    def iter_decodes(self, stored_ratio: Callable[[int], float] | None = None) -> Iterator[None]:
        """Measure as `run` does after its first decode, and yield after each decode, so that others can go first."""
        began_at = self._clock()
        if stored_ratio is not None:
            self._ends_at = began_at + self._max_check_s
            if (other := self._checked_size) is not None:
                yield from self._measure([1, other])
                if self._is_as_stored(other, stored_ratio(other)):
                    return
        self._ends_at = began_at + self._max_s
        for group in self._make_groups():
            yield from self._measure(group)

    def _prepare_sizes(self, prepare: Callable[[int], object]) -> Iterator[int]:
        """Prepare sizes, most useful first, and yield them: the first sizes always, the others within MAX_PREPARE_S."""
        ends_at = math.inf
        for size in self._sizes:
            if size not in FIRST_SIZES:
                ends_at = min(ends_at, self._clock() + MAX_PREPARE_S)
                if self._clock() >= ends_at:
                    return
            prepare(size)
            yield size

    @property
    def _checked_size(self) -> int | None:
        """The size that is compared with one row; None if only one row can be measured."""
        return next((size for size in CHECKED_SIZES if size in self._sizes), None)

    def _is_as_stored(self, size: int, stored_ratio: float) -> bool:
        measured = statistics.median(self._seconds[size]) / statistics.median(self._seconds[1])
        return abs(math.log(measured / stored_ratio)) < math.log(TOLERANCE)

    def _make_groups(self) -> Iterator[list[int]]:
        yield [size for size in self._sizes if size in FIRST_SIZES]
        others = [size for size in self._sizes if size not in FIRST_SIZES]
        for at in range(0, len(others), GROUP):
            yield [1, *others[at : at + GROUP]]

    def _measure(self, group: Sequence[int]) -> Iterator[None]:
        """Time the sizes in turn, so that a slow moment affects all. Two sizes are timed even beyond the limit."""
        times: Seconds = {size: [] for size in group}
        for _ in range(REPETITIONS):
            for size in group:
                is_needed = not times[size] and len(self._seconds) < 2 and size in group[:2]
                estimate_s = self._estimate(size, times)
                is_quick = estimate_s <= self._max_decode_s and self._clock() + estimate_s < self._ends_at
                if is_needed or is_quick:
                    times[size].append(self._time_rows(size))
                    yield
        self._store(times)

    def _estimate(self, size: int, times: Seconds) -> float:
        """Return an upper estimate of a decode's seconds, from the next smaller timed size; 0.0 if there is none."""
        timed = {
            rows: min(durations)
            for rows, durations in (*self._seconds.items(), *times.items())
            if durations and rows <= size
        }
        return timed[max(timed)] * size / max(timed) if timed else 0.0

    def _store(self, times: Seconds) -> None:
        """Store the times of a group, scaled so that its single rows match those of the first group."""
        before = self._seconds.get(1)
        factor = statistics.median(before) / statistics.median(times[1]) if before and times[1] else 1.0
        for size, durations in times.items():
            if durations:
                self._seconds.setdefault(size, []).extend(seconds * factor for seconds in durations)


def list_useful_sizes(max_rows: int, *, num_slots: int, max_prompt_rows: int = 0) -> list[int]:
    """Return the numbers of rows worth measuring, most useful first.

    max_rows         the most that the context has outputs for
    max_prompt_rows  the most rows of a step that decodes answers and prefills a prompt
    """
    equal_slots = [num_slots * rows for rows in PER_SLOT]
    candidates = dict.fromkeys([*FIRST_SIZES, *equal_slots, *OTHER_SIZES, max_rows])
    sizes = [size for size in candidates if size <= max_rows]
    with_prompts = WITH_PROMPTS if num_slots > 1 else ()
    return [*sizes, *(size for size in with_prompts if max_rows < size <= max_prompt_rows)]
