"""Decide how often the screen is drawn: eight times a second at best, less if that costs more than its CPU share.

Pure: the caller says what drawing cost. On a small machine, CPU time for drawing is taken from the engine.
"""

from __future__ import annotations

from collections import deque

FASTEST_S, SLOWEST_S = 0.125, 1.0  # seconds between two frames
LONGEST_S = 5.0  # after a frame too expensive for SLOWEST_S, such as one long block that grows
NUM_RECENT, NUM_EXPENSIVE = (8, 3)  # recent frames; how many must be expensive to count, so that a start is ignored
IDLE_S = 0.5  # while nothing moves
CPU_SHARE = 0.022  # of one core for drawing; the screen's other threads need some more
SMOOTHING = 0.7  # weight of earlier frames in the average cost of a frame


class FrameRate:
    """The gap until the next frame, from the cost of recent ones."""

    def __init__(self) -> None:
        self._cost_s = 0.0
        self._frame_costs_s: deque[float] = deque([0.0] * NUM_RECENT, maxlen=NUM_RECENT)

    def add_cpu_time(self, cpu_s: float) -> None:
        """Record the CPU time of the screen's thread since the last frame, everything included."""
        cpu_s = min(cpu_s, CPU_SHARE * SLOWEST_S)  # a start or a load must not count as the cost of a frame
        self._cost_s = SMOOTHING * self._cost_s + (1.0 - SMOOTHING) * cpu_s if self._cost_s else cpu_s

    def add_frame_cost(self, cpu_s: float) -> None:
        """Record the CPU time of this frame's text alone, without the keys that were typed."""
        self._frame_costs_s.append(cpu_s)

    def next_gap_s(self, *, is_moving: bool, late_s: float = 0.0) -> float:
        """Return the gap in seconds. late_s: how much the last frame was late, because the terminal is slow."""
        if (affordable_s := self._expensive_s / CPU_SHARE) > SLOWEST_S:
            return min(affordable_s, LONGEST_S)
        fastest = FASTEST_S if is_moving else IDLE_S
        return min(max(fastest, self._cost_s / CPU_SHARE, 2.0 * late_s), SLOWEST_S)

    @property
    def _expensive_s(self) -> float:
        """The cost of the last frame, at most the NUM_EXPENSIVE-th highest of recent ones. Counted for one gap only."""
        return min(self._frame_costs_s[-1], sorted(self._frame_costs_s)[-NUM_EXPENSIVE])
