"""Set a draft length by a PID rule on the recent acceptance rate, as EAGLE 3.1's description proposes.

Kept for comparison: it ignores costs, so it drafts on where verification is expensive, and never turns itself off.

    error = accepted / drafted - TARGET_RATE
    length += P_GAIN * error + I_GAIN * sum(errors) + D_GAIN * (error - last error)
"""

from __future__ import annotations

from eaglelocal.core.records import dataclass

TARGET_RATE = 0.6
P_GAIN, I_GAIN, D_GAIN = 0.8, 0.05, 0.3
MAX_SUM = 4.0  # of errors: without a limit the integral would act long after a change (windup)
FIRST_LENGTH, MAX_LENGTH = 3.0, 16.0


@dataclass(slots=True)
class LengthController:
    """The draft length of one slot, and the state of its PID rule."""

    length: float = FIRST_LENGTH
    error_sum: float = 0.0
    last_error: float = 0.0

    @property
    def num_draft_tokens(self) -> int:
        return round(self.length)

    def update(self, *, drafted: int, accepted: int) -> None:
        error = accepted / drafted - TARGET_RATE
        self.error_sum = min(max(self.error_sum + error, -MAX_SUM), MAX_SUM)
        change = P_GAIN * error + I_GAIN * self.error_sum + D_GAIN * (error - self.last_error)
        self.length = min(max(self.length + change, 1.0), MAX_LENGTH)
        self.last_error = error
