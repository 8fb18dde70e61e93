"""Learn how the time of steps outside decode and draft steps grows with their rows. Pure: plain numbers.

Each token is verified, emitted and learned from, in one thread, so a row's part is the same in small and large steps.
What is left of a step without its rows' parts is learned with the other costs (step_costs.py).
"""

from __future__ import annotations

from eaglelocal.core.records import dataclass

MEMORY = 64  # steps over which the line is fitted
OUTLIER = 5.0  # times what was expected, more than which says nothing of a row: the machine was suspended


@dataclass(slots=True)
class RowTime:
    """The slope of a line through the host times of recent steps by rows, by weighted least squares.

    row_s  seconds of a row; until steps of different sizes are seen, that of an earlier run
    """

    row_s: float = 0.0
    num_samples: int = 0
    rows: float = 0.0  # means and central moments
    seconds: float = 0.0
    variance: float = 0.0
    covariance: float = 0.0

    def learn(self, num_rows: int, seconds: float) -> None:
        expected_s = self.seconds + (num_rows - self.rows) * self.row_s
        if self.num_samples and expected_s > 0.0:
            seconds = min(seconds, OUTLIER * expected_s)
        self.num_samples += 1
        share = 1.0 / min(self.num_samples, MEMORY)
        more_rows, more_s = num_rows - self.rows, seconds - self.seconds
        self.rows += share * more_rows
        self.seconds += share * more_s
        self.variance = (1.0 - share) * (self.variance + share * more_rows * more_rows)
        self.covariance = (1.0 - share) * (self.covariance + share * more_rows * more_s)
        if self.variance >= 1.0:  # steps of a single size say nothing
            self.row_s = max(self.covariance / self.variance, 0.0)
