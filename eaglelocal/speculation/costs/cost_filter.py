"""Learn the machine's level, the cost of context and the costs of sizes from decode times: an extended Kalman filter.

    log seconds = level + log(ratio[rows] + (per_cell + per_row_cell * rows) * kilocells) + noise

with ratio[1] = 1. The level drifts by the minute and takes all sizes with it, the rest hardly moves. The filter
separates what plain averages mix: repeated decodes of one size update the level alone, a
change of size updates the ratio. Each size is a state variable of its own, so cliffs stay cliffs.

The noise is learned too: on a shared machine some decodes take ten times as long as others, and should not be
followed. Robust: a surprise (innovation) beyond 2.5 standard deviations counts as one of 2.5, so a step disturbed by
another program moves little. After three in a row the level, or that one size, becomes uncertain and is learned
again. No clock, no policy.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

NOISE = 0.05  # standard deviation of the logarithm of a single decode, before it is known
NOISE_RANGE = (0.01, 1.5)
NOISE_RATE = 1 / 64  # learning rate of the noise, per step; slow compared with a jump of the level
LEVEL_DRIFT = 0.03  # of the level, per second of decoding; a random walk, like the next two
SHAPE_DRIFT = 0.004  # of the ratio of a size
SLOPE_DRIFT = 0.0003  # of the cost of context
MAX_SHAPE_DEVIATION = 0.3  # up to which a size that is not seen becomes uncertain
SLOPE_DEVIATION = 0.1  # before anything is known of the cost of 1000 cells, in decodes of one row
CLIP = 2.5  # standard deviations up to which a surprise counts
SURPRISES = 3  # clipped ones in a row, until they are believed
RESET_VARIANCE = 0.2**2  # variance added then
REBASED_DEVIATION = 0.25  # of a ratio, per shift by a correction of the unit
MAX_SIZES = 64  # rows for which ratios are kept; the work of an update grows with the square
LEVEL_DEVIATION = 5.0  # before anything is known

LEVEL, PER_CELL, PER_ROW_CELL, FIRST_SIZE = 0, 1, 2, 3  # indices in the state
THE_LEVEL = 0  # its key in _runs, beside numbers of rows

Floats = npt.NDArray[np.float64]


class CostFilter:
    """State and covariance of the filter; one row is the unit and has no ratio to learn."""

    def __init__(self) -> None:
        self.indices: dict[int, int] = {}  # rows -> index in the state
        self.noise = NOISE
        self._runs: dict[int, int] = {}  # surprises in a row, signed, by rows and for THE_LEVEL
        self._state: Floats = np.array([0.0, 0.02, 0.02])
        self._covariance: Floats = np.diag([LEVEL_DEVIATION, SLOPE_DEVIATION, SLOPE_DEVIATION]) ** 2
        self._allocate()

    # ---- what is known
    @property
    def level(self) -> float:
        """Logarithm of the seconds of one row with no context."""
        return float(self._state[LEVEL])

    @property
    def slopes(self) -> tuple[float, float]:
        """Cost of 1000 cells, in decodes of one row: for the decode, and for each row."""
        return float(self._state[PER_CELL]), float(self._state[PER_ROW_CELL])

    @property
    def slope_deviation(self) -> float:
        """Standard deviation of the less certain slope."""
        return math.sqrt(float(self._diagonal[PER_CELL:FIRST_SIZE].max()))

    @property
    def ratios(self) -> dict[int, float]:
        """Seconds of every kept size, ascending, relative to one row; without context."""
        values = np.exp(self._state[FIRST_SIZE:]).tolist()
        known = {rows: values[index - FIRST_SIZE] for rows, index in self.indices.items()} | {1: 1.0}
        return dict(sorted(known.items()))

    @property
    def shape(self) -> Floats:
        """A copy of the ratios' logarithms, for `has_moved` to compare with."""
        return self._state[FIRST_SIZE:].copy()

    def has_moved(self, since: Floats, tolerance: float) -> bool:
        """Return whether a ratio has changed by more than this share since `since`, or a size was added."""
        now = self._state[FIRST_SIZE:]
        return len(now) != len(since) or bool(len(now) and np.abs(now - since).max() > tolerance)

    def log_ratio(self, num_rows: int) -> float:
        """Return the logarithm of a kept size's ratio."""
        return float(self._state[self.indices[num_rows]])

    def deviation(self, num_rows: int) -> float:
        """Return the standard deviation of the logarithm of a kept ratio; 0.0 for other sizes."""
        index = self.indices.get(num_rows)
        return 0.0 if index is None else math.sqrt(float(self._covariance[index, index]))

    # ---- what is set
    def set_level(self, level: float, deviation: float) -> None:
        self._set(LEVEL, level, deviation)

    def set_noise(self, noise: float) -> None:
        """Set the standard deviation of a single decode's logarithm."""
        self.noise = noise

    def set_slopes(self, per_cell: float, per_row_cell: float, deviation: float) -> None:
        self._set(PER_CELL, per_cell, deviation)
        self._set(PER_ROW_CELL, per_row_cell, deviation)

    def set_ratio(self, num_rows: int, ratio: float, deviation: float) -> None:
        """Set the cost ratio of a size. A new size is added unless MAX_SIZES are kept; one row is the unit and never
        changes.
        """
        if num_rows == 1 or (num_rows not in self.indices and self.is_full):
            return
        if num_rows not in self.indices:
            self.indices[num_rows] = len(self._state)
            self._state = np.append(self._state, 0.0)
            self._covariance = np.pad(self._covariance, (0, 1))
            self._allocate()
        self._set(self.indices[num_rows], math.log(ratio), deviation)

    def rebase(self, shift: float, moved: float) -> None:
        """Multiply the cost of one row, the unit, by e ** moved, and all ratios by e ** -shift; context keeps its cost.

        With `moved` = `shift` all other sizes keep their seconds, with 0.0 one row does. They need not all be wrong by
        the same factor, so they become less certain.
        """
        self._state[LEVEL] += moved
        self._state[FIRST_SIZE:] -= shift
        self._state[PER_CELL:FIRST_SIZE] *= math.exp(-moved)
        self._diagonal[FIRST_SIZE:] += min((REBASED_DEVIATION * shift) ** 2, RESET_VARIANCE)

    @property
    def is_full(self) -> bool:
        return len(self.indices) >= MAX_SIZES

    # ---- what is measured
    def learn(self, num_rows: int, seconds: float, kilocells: float, *, ratio: float, count: int = 1) -> None:
        """Learn one decode, or the median of `count` decodes.

        ratio  estimate for a size that is not kept

        A median is believed more than one decode, but less than `count` independent ones: consecutive decodes have
        similar noise. A surprising median counts as `count` surprises, because half of the decodes were that far off.
        """
        index = self.indices.get(num_rows)
        state, covariance, gradient = self._state, self._covariance, self._gradient
        base = ratio if index is None else math.exp(state[index])
        relative = base + (state[PER_CELL] + state[PER_ROW_CELL] * num_rows) * kilocells
        gradient[PER_CELL] = kilocells / relative
        gradient[PER_ROW_CELL] = num_rows * kilocells / relative
        if index is not None:
            gradient[index] = base / relative
        shared = covariance @ gradient
        deviation = math.sqrt(shared @ gradient + self.noise**2 / math.sqrt(count))
        surprise = (math.log(seconds / relative) - state[LEVEL]) / deviation
        clipped = max(-CLIP, min(CLIP, surprise))
        shared /= deviation
        state += shared * clipped
        covariance -= shared[:, None] * shared  # symmetric to the last bit
        self._learn_noise(clipped)
        if state[PER_CELL] < 0.0 or state[PER_ROW_CELL] < 0.0:
            np.maximum(state[PER_CELL:FIRST_SIZE], 0.0, out=state[PER_CELL:FIRST_SIZE])
        self._add_drift(min(seconds, 1.0) * count)
        self._count_surprises(num_rows, index, 0 if surprise == clipped else int(math.copysign(count, surprise)))
        if index is not None:
            gradient[index] = 0.0

    def _learn_noise(self, surprise: float) -> None:
        """Adapt the noise until surprises are as large as expected: 0.8 standard deviations on average."""
        low, high = NOISE_RANGE
        self.noise = min(high, max(low, self.noise * math.exp(NOISE_RATE * (abs(surprise) / 0.8 - 1))))

    def _add_drift(self, seconds: float) -> None:
        """Make everything less certain, by the seconds that passed and not by the number of steps."""
        self._diagonal += (self._diagonal < self._max_variances) * (self._drift * seconds)

    def _count_surprises(self, num_rows: int, index: int | None, surprises: int) -> None:
        """Make the level or the size uncertain after SURPRISES in a row.

        surprises  how many there were now, negative if faster than expected
        """
        level_run = self._count_run(THE_LEVEL, surprises)
        size_run = self._count_run(num_rows, surprises)
        if abs(level_run) >= SURPRISES:
            self._diagonal[LEVEL] += RESET_VARIANCE
            self._runs.clear()
        elif index is not None and abs(size_run) >= SURPRISES:
            self._diagonal[index] += RESET_VARIANCE
            self._runs[num_rows] = 0

    def _count_run(self, key: int, surprises: int) -> int:
        before = self._runs.get(key, 0)
        run = self._runs[key] = before + surprises if surprises and before * surprises >= 0 else surprises
        return run

    def _set(self, index: int, value: float, deviation: float) -> None:
        self._state[index] = value
        self._covariance[index, :] = self._covariance[:, index] = 0.0
        self._covariance[index, index] = deviation**2

    def _allocate(self) -> None:
        size = len(self._state)
        self._gradient = np.zeros(size)
        self._gradient[LEVEL] = 1.0
        self._diagonal = self._covariance.reshape(-1)[:: size + 1]  # a view
        num_sizes = size - FIRST_SIZE
        self._drift = np.array([LEVEL_DRIFT, SLOPE_DRIFT, SLOPE_DRIFT, *[SHAPE_DRIFT] * num_sizes]) ** 2
        limits = [LEVEL_DEVIATION, SLOPE_DEVIATION, SLOPE_DEVIATION, *[MAX_SHAPE_DEVIATION] * num_sizes]
        self._max_variances = np.array(limits) ** 2  # variances that drift does not exceed
