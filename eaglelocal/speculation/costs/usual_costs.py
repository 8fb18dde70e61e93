"""Remember the usual cost of decodes by size, beside their current cost.

Another program may make some sizes expensive for a while. The usual cost follows the current one over ten minutes of
decoding, in either direction: a minute moves it little, and a lasting change becomes usual. A new size has no usual
cost until it has been measured for a while on a calm machine, because its first runs may have come at a bad moment.
Pure.
"""

from __future__ import annotations

import math

import numpy as np

from eaglelocal.speculation.costs.cost_curve import interpolate_costs
from eaglelocal.speculation.costs.cost_filter import FIRST_SIZE, CostFilter, Floats

NOISY = 1.5  # times the usual noise, from which on the machine is not calm
RAISED = math.log(1.2)  # of a size's cost relative to its usual one
USUAL_S = 600.0  # seconds of decodes until other costs are usual
SETTLED_S = 10.0  # of decodes since a size ran first, until what it costs in a calm moment is usual


class UsualCosts:
    """The usual ratios of the sizes that a filter keeps."""

    def __init__(self, known: CostFilter) -> None:
        self._known = known
        self._logs: Floats = np.zeros(0)  # of the usual ratios, in the order of the filter; NaN: not known
        self._ages_s: Floats = np.zeros(0)  # of the sizes
        self._noise = known.noise
        self.is_raised = False  # whether some size costs clearly more than usual

    @property
    def ratios(self) -> dict[int, float]:
        """Return the usual costs of sizes relative to one row, ascending by size, where they are known."""
        logs = {rows: self._log(rows) for rows in sorted(self._known.indices)}
        return {1: 1.0} | {rows: math.exp(log) for rows, log in logs.items() if not math.isnan(log)}

    def rise(self, num_rows: int) -> float:
        """Return the logarithm of a size's cost relative to its usual one, if that is clearly more; else 0.0."""
        if not self.is_raised or num_rows not in self._known.indices:
            return 0.0
        rise = self._known.log_ratio(num_rows) - math.log(interpolate_costs(self.ratios, num_rows)[num_rows])
        return rise if rise > RAISED else 0.0

    def least_raised(self, least: int) -> int | None:
        """Return the smallest size of more than `least` rows that costs clearly more than usual; None if none does."""
        return next((rows for rows in sorted(self._known.indices) if rows > least and self.rise(rows) > 0.0), None)

    def _log(self, num_rows: int) -> float:
        return float(self._logs[self._known.indices[num_rows] - FIRST_SIZE])

    def begin(self) -> None:
        """Take the current cost of every size as its usual one."""
        self._logs, self._noise = self._known.shape, self._known.noise
        self._ages_s = np.full(len(self._logs), SETTLED_S)
        self.is_raised = False

    def follow(self, seconds: float) -> None:
        """Move the usual costs towards the current ones, by the seconds of decoding since the last call."""
        self.compare()
        present = self._known.shape
        self._ages_s += seconds
        self._noise += min(seconds / USUAL_S, 1.0) * (self._known.noise - self._noise)
        if not self.is_raised and self._known.noise < NOISY * self._noise:
            is_settled = np.isnan(self._logs) & (self._ages_s >= SETTLED_S)
            self._logs = np.where(is_settled, present, self._logs)
        self._logs += min(seconds / USUAL_S, 1.0) * (present - self._logs)

    def compare(self) -> None:
        """Update `is_raised`: whether some size costs clearly more than usual."""
        present = self._known.shape
        num_new = len(present) - len(self._logs)
        self._logs = np.append(self._logs, np.full(num_new, math.nan))
        self._ages_s = np.append(self._ages_s, np.zeros(num_new))
        self.is_raised = bool((present - self._logs > RAISED).any())
