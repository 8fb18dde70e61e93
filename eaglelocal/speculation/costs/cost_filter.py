"""Learn what each kind of work costs from the seconds that it took: one extended Kalman filter for all.

    log seconds = level + log(ratio[work] + (per_cell + per_row_cell * rows) * kilocells) + noise

The level is the machine's speed: it drifts by the minute and takes everything with it. Ratios hardly drift. The filter
separates what plain averages mix: repeated decodes of one size move the level, a change of size moves the ratios.
Each size is a state variable of its own, so cliffs stay cliffs. Draft steps and overheads do not move the level.

Robust: a surprise (innovation) beyond CLIP standard deviations counts as CLIP. After SURPRISES in a row the level
becomes uncertain, or the ratio if decodes of other sizes did not surprise, and is learned again.

What is not seen for a while is believed to cost what it usually does. Beside its cost each work has a usual one, which
follows it over ten minutes. A program that slows the machine raises costs above the usual ones, all by the same cause.
Raised costs return to the usual ones. So what became too expensive is tried again later; if it is cheap again, all
else is; if not, it is known again after one sample. The longer costs are raised, the more slowly they return.

No clock, no policy.
"""

from __future__ import annotations

import math
from bisect import insort
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from eaglelocal.speculation.stored_numbers import clamp

NOISE = 0.05  # standard deviation of the logarithm of a single sample, before it is known
NOISE_RANGE = (0.01, 1.5)
NOISE_RATE = 1 / 64  # learning rate of the noise, per sample; slow compared with a jump of the level
LEVEL_DRIFT = 0.03  # of the level, per second of decoding; a random walk, like the next two
SHAPE_DRIFT = 0.004  # of a ratio
SLOPE_DRIFT = 0.0003  # of the cost of context
MAX_DEVIATION = 0.3  # up to which a work that is not seen becomes uncertain
SLOPE_DEVIATION = 0.1  # before anything is known of the cost of 1000 cells, in decodes of one row
CLIP = 2.5  # standard deviations up to which a surprise counts
DIFFERENCES = -math.log(8.0), math.log(8.0)  # that are believed at once: the machine may have been suspended
SURPRISES = 3  # clipped ones in a row, until they are believed
RAISED, RETURNED = math.log(1.2), math.log(1.02)  # over the usual cost
USUAL_S = 600.0  # seconds of a work until another cost is usual, once it is well known
NUM_STEADY = 16  # plain samples after a jump of the level, in which it shows what has jumped
WELL_KNOWN = 8  # samples of a work, from which on it can be raised
RETURN_STEPS, RETURN_SHARE = 16.0, 0.1  # in which raised costs return; or of the steps since they are raised
MAX_SIZES = 64  # numbers of rows whose decodes have ratios; the work of an update grows with the square
LEVEL_DEVIATION = 5.0  # before anything is known

LEVEL, PER_CELL, PER_ROW_CELL, FIRST = 0, 1, 2, 3  # indices in the state

Floats = npt.NDArray[np.float64]


class Work(NamedTuple):
    """A kind of work that takes time, and its number of rows: a decode, a draft step of a drafter, .."""

    kind: str
    num_rows: int


DECODE = "decode"


class Run(NamedTuple):
    """Surprises in a row, in one direction: how many samples, and the least logarithm by which one differed."""

    num_samples: int
    difference: float


NO_RUN = Run(0, 0.0)


class CostFilter:
    """State and covariance of the filter."""

    def __init__(self) -> None:
        self.indices: dict[Work, int] = {}
        self._sizes: dict[str, list[int]] = {}  # numbers of rows, ascending, by kind
        self._noises: dict[str, float] = {}  # by kind
        self._runs: dict[Work | str, Run] = {}  # by work and by kind
        self._num_steady = NUM_STEADY + 1  # plain samples since the level jumped
        self.num_raised = 0  # steps in which some cost was raised, less those since
        self._state: Floats = np.array([0.0, 0.02, 0.02])
        self._usual: Floats = self._state.copy()
        self._counts: Floats = np.zeros(FIRST)  # samples
        self._weights: Floats = np.zeros(FIRST)  # of the usual costs, in samples
        self._raised: npt.NDArray[np.bool_] = np.zeros(FIRST, np.bool_)
        self._covariance: Floats = np.diag([LEVEL_DEVIATION, SLOPE_DEVIATION, SLOPE_DEVIATION]) ** 2
        self._allocate()

    # ---- what is known
    def log_seconds(self, work: Work) -> float:
        """Return the logarithm of the seconds of a known work, without context."""
        return float(self._state[LEVEL] + self._state[self.indices[work]])

    @property
    def slopes(self) -> tuple[float, float]:
        """Seconds of 1000 cells, relative to the level: for the decode, and for each row."""
        return float(self._state[PER_CELL]), float(self._state[PER_ROW_CELL])

    @property
    def slope_deviation(self) -> float:
        """Standard deviation of the less certain slope."""
        return math.sqrt(float(self._diagonal[PER_CELL:FIRST].max()))

    @property
    def level(self) -> float:
        return float(self._state[LEVEL])

    @property
    def shape(self) -> Floats:
        """A copy of the ratios' logarithms, for `has_moved` to compare with."""
        return self._state[FIRST:].copy()

    def has_moved(self, since: Floats, tolerance: float) -> bool:
        """Return whether a ratio has changed by more than this share since `since`, or a work was added."""
        now = self._state[FIRST:]
        return len(now) != len(since) or bool(len(now) and np.abs(now - since).max() > tolerance)

    def known_sizes(self, kind: str) -> list[int]:
        """Return the numbers of rows, ascending, for which the cost of a kind of work is kept."""
        return self._sizes.get(kind, [])

    def deviation(self, work: Work, unit: Work) -> float:
        """Return the standard deviation of the logarithm of a work's cost relative to another's."""
        if work == unit:
            return 0.0
        at, one = self.indices[work], self.indices[unit]
        covariance = self._covariance
        return math.sqrt(max(covariance[at, at] + covariance[one, one] - 2.0 * covariance[at, one], 0.0))

    def noise(self, kind: str) -> float:
        """Return the standard deviation of the logarithm of one sample."""
        return self._noises.get(kind, NOISE)

    def num_samples(self, work: Work) -> int:
        index = self.indices.get(work)
        return 0 if index is None else int(self._counts[index])

    # ---- what is set
    def set_level(self, level: float, deviation: float) -> None:
        self._set(LEVEL, level, deviation)

    def set_noise(self, kind: str, noise: float) -> None:
        self._noises[kind] = noise

    def set_slopes(self, per_cell: float, per_row_cell: float, deviation: float) -> None:
        self._set(PER_CELL, per_cell, deviation)
        self._set(PER_ROW_CELL, per_row_cell, deviation)

    def set_ratio(self, work: Work, ratio: float, deviation: float, *, num_samples: int | None = None) -> None:
        """Set the cost of a work relative to the level, and take it for the usual one.

        num_samples  from which it is known; None: it is estimated
        """
        if work not in self.indices:
            self.indices[work] = len(self._state)
            insort(self._sizes.setdefault(work.kind, []), work.num_rows)
            self._state, self._usual = np.append(self._state, 0.0), np.append(self._usual, 0.0)
            self._counts, self._weights = np.append(self._counts, 0.0), np.append(self._weights, 0.0)
            self._raised = np.append(self._raised, False)
            self._covariance = np.pad(self._covariance, (0, 1))
            self._allocate()
        at = self.indices[work]
        self._set(at, math.log(ratio), deviation)
        self._usual[at], self._counts[at] = self._state[at], num_samples or 0
        self._weights[at] = 0.0 if num_samples is None else math.inf

    def has_room(self, kind: str) -> bool:
        return len(self.known_sizes(kind)) < MAX_SIZES

    # ---- what is measured
    def learn(
        self,
        work: Work,
        seconds: float,
        kilocells: float = 0.0,
        *,
        ratio: float,
        count: int = 1,
        is_plain: bool = False,
    ) -> None:
        """Learn one sample, or the median of `count`.

        ratio     estimate for a work that is not kept
        is_plain  a decode without drafts: its cost relative to the level stays the usual one

        A median is believed more than one sample, but less than `count` independent ones: consecutive samples have
        similar noise. A surprising median counts as `count` surprises, because half of the samples were that far off.
        """
        is_decode = work.kind == DECODE
        if is_decode:
            self._pass_time(min(seconds, 1.0) * count, count)
        index, state, gradient = self.indices.get(work), self._state, self._gradient
        base = ratio if index is None else math.exp(state[index])
        relative = base + (state[PER_CELL] + state[PER_ROW_CELL] * work.num_rows) * kilocells
        gradient[LEVEL] = float(is_decode)
        gradient[PER_CELL] = kilocells / relative
        gradient[PER_ROW_CELL] = work.num_rows * kilocells / relative
        if index is not None:
            gradient[index] = base / relative
        rise = 0.0
        if index is not None and self._raised[index]:
            rise = float(state[index] - self._usual[index])
            self._diagonal[index] = max(self._diagonal[index], (rise / 2.0) ** 2)  # it may have returned
        variance = self.noise(work.kind) ** 2 / math.sqrt(count) + (0.0 if index is not None else MAX_DEVIATION**2)
        difference = clamp(math.log(seconds / relative) - float(state[LEVEL]), DIFFERENCES)
        surprise = difference / math.sqrt(gradient @ self._covariance @ gradient + variance)
        surprises = count if abs(surprise) > CLIP else 0
        if index is not None:
            self._noises[work.kind] = follow_noise(self.noise(work.kind), max(-CLIP, min(CLIP, surprise)), count)
        self._count_surprises(work, index, surprises, difference)
        self._update(difference, variance)
        if index is not None:
            self._return(index, rise)
            self._follow_usual(index, min(relative * math.exp(state[LEVEL]), 1.0), count)
            if is_plain:
                self._settle_level(index)
            gradient[index] = 0.0

    def _update(self, difference: float, variance: float) -> None:
        """Move the state towards a sample that differs so much from what was expected."""
        shared = self._covariance @ self._gradient
        deviation = math.sqrt(shared @ self._gradient + variance)
        shared /= deviation
        self._state += shared * max(-CLIP, min(CLIP, difference / deviation))
        self._covariance -= shared[:, None] * shared  # symmetric to the last bit
        np.maximum(self._state[PER_CELL:FIRST], 0.0, out=self._state[PER_CELL:FIRST])

    def _pass_time(self, seconds: float, num_steps: int) -> None:
        """Make everything less certain, by the seconds of decoding that passed; let raised costs return."""
        self._diagonal += (self._diagonal < self._max_variances) * (self._drift * seconds)
        rises = self._rises()
        is_raised = bool((self._raised & (self._weights >= WELL_KNOWN)).any())
        self.num_raised = max(self.num_raised + (num_steps if is_raised else -num_steps), 0)
        share = 1.0 - math.exp(-num_steps / max(RETURN_STEPS, RETURN_SHARE * self.num_raised))
        self._state -= share * rises
        self._diagonal += share * rises**2 / 4.0

    def _rises(self) -> Floats:
        """Update which ratios are raised: those that were clearly above the usual ones, until they have returned.

        Return by how much they are above; 0.0 for others.
        """
        rises = self._state - self._usual
        rises[:FIRST] = 0.0
        self._raised = (rises > RAISED) | (self._raised & (rises > RETURNED))
        return rises * self._raised

    def _return(self, index: int, rise: float) -> None:
        """Let all that is raised return if this ratio has: it was by the same cause."""
        if rise > RETURNED and self._state[index] - self._usual[index] < rise / 2.0:
            self._state -= self._rises()
            self.num_raised = 0

    def _settle_level(self, index: int) -> None:
        """Move the level, and all ratios the other way, until this decode costs what it usually does.

        That changes no prediction. It tells what has become slow: the machine, or all that is drafted; plain decodes
        are not slow alone. If the level has not jumped lately, their usual cost was wrong.
        """
        excess = float(self._state[index] - self._usual[index])
        if self._num_steady > NUM_STEADY:
            usual = self._usual[index]
            self._usual[FIRST:] -= excess
            self._usual[index] = usual
        self._num_steady += 1
        self._state[FIRST:] -= excess
        self._state[LEVEL] += excess
        self._state[PER_CELL:FIRST] *= math.exp(-excess)

    def _follow_usual(self, index: int, seconds: float, count: int) -> None:
        """Let the usual cost follow by `count` samples of so many seconds. If it was only estimated, and nothing is
        raised, it becomes the mean of all samples; not if it costs far less: then the level is too high.
        """
        share = min(seconds * count / USUAL_S, 1.0)
        difference = float(self._state[index] - self._usual[index])
        if not self.num_raised and difference > -RAISED:
            share = max(share, count / (self._weights[index] + count + 1.0))
        self._counts[index] += count
        self._weights[index] += count
        self._usual[index] += share * difference

    def _count_surprises(self, work: Work, index: int | None, surprises: int, difference: float) -> None:
        """Make level and ratio uncertain after SURPRISES in a row, as far as all of them differ from what was expected.

        surprises  how many there were now
        """
        by_kind = self._count_run(work.kind, surprises, difference)
        by_work = self._count_run(work, surprises, difference)
        if max(by_kind.num_samples, by_work.num_samples) < SURPRISES:
            return
        if by_kind.num_samples >= SURPRISES and work.kind == DECODE:
            self._diagonal[LEVEL] += by_kind.difference**2
            self._num_steady = 0
        elif index is not None:
            self._diagonal[index] += by_work.difference**2
        self._runs = {key: run for key, run in self._runs.items() if key != work.kind and key != work}

    def _count_run(self, key: Work | str, surprises: int, difference: float) -> Run:
        before = self._runs.get(key, NO_RUN)
        if before.num_samples and surprises and before.difference * difference > 0.0:
            least = min(before.difference, difference, key=abs)
            run = Run(before.num_samples + surprises, least)
        else:
            run = Run(surprises, difference)
        self._runs[key] = run
        return run

    def _set(self, index: int, value: float, deviation: float) -> None:
        self._state[index] = value
        self._covariance[index, :] = self._covariance[:, index] = 0.0
        self._covariance[index, index] = deviation**2

    def _allocate(self) -> None:
        size = len(self._state)
        self._gradient = np.zeros(size)
        self._diagonal = self._covariance.reshape(-1)[:: size + 1]  # a view
        num_works = size - FIRST
        self._drift = np.array([LEVEL_DRIFT, SLOPE_DRIFT, SLOPE_DRIFT, *[SHAPE_DRIFT] * num_works]) ** 2
        limits = [LEVEL_DEVIATION, SLOPE_DEVIATION, SLOPE_DEVIATION, *[MAX_DEVIATION] * num_works]
        self._max_variances = np.array(limits) ** 2  # variances that drift does not exceed


def follow_noise(noise: float, surprise: float, count: int) -> float:
    """Adapt the noise until surprises are as large as expected: 0.8 standard deviations on average."""
    low, high = NOISE_RANGE
    return min(high, max(low, noise * math.exp(NOISE_RATE * count * (abs(surprise) / 0.8 - 1))))
