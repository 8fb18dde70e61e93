"""Learn the cost of decodes by size, relative to one row: by the filter, or by medians where a size ran only a few
times.

A size is a number of rows. One that ran a few times is rated by the better half of its runs, because an outlier takes
two to ten times as long. StepCosts predicts the sizes that never ran. Pure.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from eaglelocal.speculation.costs.cost_curve import UNMEASURED_DEVIATION, interpolate_costs
from eaglelocal.speculation.costs.cost_filter import NOISE, CostFilter
from eaglelocal.speculation.costs.saved_costs import SavedCosts
from eaglelocal.speculation.costs.undersampled_sizes import DEVIATION as FEW_DEVIATION
from eaglelocal.speculation.costs.undersampled_sizes import UndersampledSizes
from eaglelocal.speculation.costs.usual_costs import UsualCosts

STORED_LEVEL_DEVIATION = 0.5
STORED_DEVIATION = 0.08  # at least, of a ratio that was stored
CONTEXT_SHARE = 0.25  # of a decode, the most that is taken off for its context where the size ran a few times
RESTORED_DEVIATION = 0.1  # of a ratio that was believed to be as usual again
MANY = 3  # decodes whose median an outlier does not move


class SizeCosts:
    """The sizes that ran: their filter, and how often each was seen."""

    def __init__(self, saved: SavedCosts | None = None) -> None:
        self.filter = CostFilter()
        self.num_samples: dict[int, int] = {}  # by rows
        self._undersampled = UndersampledSizes()
        self.usual = UsualCosts(self.filter)
        if saved is not None:
            self._load(saved)

    def _load(self, saved: SavedCosts) -> None:
        self.filter.set_level(saved.level, STORED_LEVEL_DEVIATION)
        self.filter.set_slopes(*saved.slopes)
        for rows, ratio, deviation, samples in saved.sizes:
            least = max(STORED_DEVIATION, FEW_DEVIATION.get(samples, 0.0))
            self.filter.set_ratio(rows, ratio, max(deviation, least))
            if samples:
                self.num_samples[rows] = samples
            if rows > 1 and 0 < samples < MANY:
                self._undersampled.begin(rows, [ratio])
        self.usual.begin()

    # ---- what is known
    @property
    def unit_s(self) -> float:
        """Seconds of one row with no context, the unit of all that is kept; 1.0 before any decode."""
        return math.exp(self.filter.level)

    def is_kept(self, num_rows: int) -> bool:
        """Return whether the filter knows the size's ratio."""
        return num_rows == 1 or num_rows in self.filter.indices

    def deviation(self, num_rows: int) -> float:
        """Return how uncertain the ratio of a size is: 0.05 means by about 5 %."""
        if self.is_kept(num_rows):
            return self.filter.deviation(num_rows)
        return UNMEASURED_DEVIATION[num_rows > max(self.filter.indices, default=1)]

    def state(self) -> dict[str, object]:
        """Return the part that SavedCosts keeps, as plain data."""
        known = self.filter
        return {
            "level": known.level,
            "slopes": [*known.slopes, known.slope_deviation],
            "sizes": [[n, r, known.deviation(n), self.num_samples.get(n, 0)] for n, r in known.ratios.items()],
            "noise": known.noise,
        }

    # ---- what is measured
    def calibrate(self, seconds: Mapping[int, Sequence[float]]) -> None:
        """Learn decodes that were measured one after another over an empty context; single rows must be among them."""
        single = statistics.median(seconds[1])
        noise = measure_noise(seconds.values())
        self.filter.set_noise(noise)
        self.filter.set_level(math.log(single), noise)
        for rows, took in seconds.items():
            spread = max(noise, math.log(max(took) / min(took)) / 2) * math.sqrt(2 / len(took))
            ratios = [seconds / single for seconds in took]
            self._undersampled.end(rows)
            if rows > 1 and len(took) < MANY:
                self._undersampled.begin(rows, ratios)
                spread = max(spread, FEW_DEVIATION[len(took)])
            self.filter.set_ratio(rows, statistics.median_low(ratios), spread)
            self.num_samples[rows] = self.num_samples.get(rows, 0) + len(took)
        self.usual.begin()

    def learn(self, num_rows: int, seconds: float, kilocells: float, *, estimate: float, count: int) -> bool:
        """Learn one decode, or the median of `count`. Return whether predictions change by more than drift.

        estimate  the ratio that was predicted for the size
        """
        was_kept = self.is_kept(num_rows)
        if not was_kept:
            self.filter.set_ratio(num_rows, estimate, self.deviation(num_rows))
        self.filter.learn(num_rows, seconds, kilocells, ratio=estimate, count=count)
        is_new = num_rows not in self.num_samples
        self.num_samples[num_rows] = self.num_samples.get(num_rows, 0) + count
        if is_new and num_rows > 1 and count < MANY:
            self._undersampled.begin(num_rows)
        is_undersampled = num_rows in self._undersampled
        if is_undersampled:
            self._learn_undersampled(num_rows, seconds, kilocells, estimate)
        self.usual.follow(min(seconds, 1.0) * count)
        return is_undersampled or is_new or not was_kept

    def _learn_undersampled(self, num_rows: int, seconds: float, kilocells: float, estimate: float) -> None:
        """Learn a run of a size that ran a few times.

        With a long context, whose cost is uncertain at first, the size's own cost cannot be separated: it is left to
        the filter, which weighs both.
        """
        per_cell, per_row_cell = self.filter.slopes
        relative, context_cost = seconds / self.unit_s, (per_cell + per_row_cell * num_rows) * kilocells
        if context_cost > CONTEXT_SHARE * relative:
            self._undersampled.end(num_rows)
            return
        ratio, deviation = self._undersampled.add(num_rows, relative - context_cost, estimate=estimate)
        self.filter.set_ratio(num_rows, ratio, max(deviation, self.filter.noise))

    def set_ratio(self, num_rows: int, ratio: float) -> None:
        """Correct the cost of one size, and leave all other sizes as they are."""
        self._undersampled.end(num_rows)
        self.filter.set_ratio(num_rows, ratio, self.filter.noise)
        self.usual.compare()  # it may be a new size

    def restore_usual(self) -> None:
        """Reset all sizes that cost more than usual to their usual cost.

        A size whose usual cost is not known is treated as if it had never run.
        """
        usual = self.usual.ratios
        between = interpolate_costs(usual, max(self.filter.indices, default=1))
        for rows, ratio in self.filter.ratios.items():
            if ratio > between[rows]:
                self._undersampled.end(rows)
                deviation = RESTORED_DEVIATION if rows in usual else UNMEASURED_DEVIATION[0]
                self.filter.set_ratio(rows, between[rows], deviation)
        self.usual.compare()

    def rebase(self, shift: float, moved: float) -> None:
        """Multiply the cost of one row, the unit, by e ** moved, and the cost of all other sizes by e ** (moved -
        shift).
        """
        self.filter.rebase(shift, moved)
        self._undersampled.scale(math.exp(-shift))
        self.usual.compare()


def measure_noise(samples: Iterable[Sequence[float]]) -> float:
    """Return the standard deviation of the logarithm of one decode, from repeated ones; outliers do not count."""
    spreads = [abs(math.log(value / statistics.median(took))) for took in samples for value in took if len(took) > 2]
    apart = [spread for spread in spreads if spread > 0.0]  # the median itself is no sample of the noise
    return max(NOISE, 1.2 * statistics.median(apart)) if apart else NOISE
