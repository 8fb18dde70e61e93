"""Remember what decodes of each size usually cost, beside what they cost now.

Another program may make some sizes dear for a while. What they usually cost follows what they cost now, in either
direction, over ten minutes of decoding: a minute moves it little, and what lasts becomes usual. Pure.
"""

from __future__ import annotations

import math

import numpy as np

from eaglelocal.speculation.costs.cost_filter import FIRST_SIZE, CostFilter, Floats

RAISED = math.log(1.2)  # of a size's cost relative to its usual one
USUAL_S = 600.0  # seconds of decodes until other costs are usual


class UsualCosts:
    """The usual ratios of the sizes that a filter keeps."""

    def __init__(self, known: CostFilter) -> None:
        self._known = known
        self._logs: Floats = known.shape  # of the usual ratios, in the order of the filter
        self.is_raised = False  # whether some size costs clearly more than usual

    @property
    def ratios(self) -> dict[int, float]:
        """Seconds that sizes usually take, relative to one row; of those for which that is known."""
        logs = {rows: self._log(rows) for rows in self._known.indices}
        return {rows: math.exp(log) for rows, log in logs.items() if not math.isnan(log)}

    def rise(self, num_rows: int) -> float:
        """Return the logarithm of a size's cost relative to its usual one, if that is clearly more; else 0.0."""
        if not self.is_raised or num_rows not in self._known.indices:
            return 0.0
        rise = self._known.log_ratio(num_rows) - self._log(num_rows)
        return rise if rise > RAISED else 0.0

    def _log(self, num_rows: int) -> float:
        return float(self._logs[self._known.indices[num_rows] - FIRST_SIZE])

    def set(self, num_rows: int) -> None:
        """Believe that what the size costs now is usual; the filter may not keep it."""
        index = self._known.indices.get(num_rows)
        self.compare()
        if index is not None and not self.is_raised:
            self._logs[index - FIRST_SIZE] = self._known.log_ratio(num_rows)

    def follow(self, seconds: float) -> None:
        """Let all sizes follow what they cost now, by the seconds of the decodes that were learned."""
        self.compare()
        present = self._known.shape
        if not self.is_raised:
            self._logs = np.where(np.isnan(self._logs), present, self._logs)
        self._logs += min(seconds / USUAL_S, 1.0) * (present - self._logs)

    def compare(self) -> None:
        """Note whether some size is dear. What sizes usually cost that first run meanwhile is not known before the end.
        """
        present = self._known.shape
        new = present[len(self._logs) :]
        self._logs = np.append(self._logs, np.full(len(new), math.nan) if self.is_raised else new)
        self.is_raised = bool((present - self._logs > RAISED).any())
