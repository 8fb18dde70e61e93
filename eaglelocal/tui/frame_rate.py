"""Decide how often the screen is drawn: eight times a second at best, less if that costs more than its CPU share.

Pure: the caller says what drawing cost. On two cores every per cent of one is a per cent of the engine's speed.
"""

from __future__ import annotations

from collections import deque

FASTEST_S, SLOWEST_S = 0.125, 1.0  # seconds between two frames
LONGEST_S = 5.0  # after a frame too expensive for SLOWEST_S, such as one long block that grows
NUM_RECENT, NUM_DEAR = 8, 3  # frames looked back on; how many must be expensive, so that a start or a load is ignored
IDLE_S = 0.5  # while nothing moves
SHARE = 0.022  # of one core for drawing; the screen's other threads need some more
MEMORY = 0.7  # weight of earlier frames in the average cost of a frame


class FrameRate:
    """The gap until the next frame, from the cost of recent ones."""

    def __init__(self) -> None:
        self._cost_s = 0.0
        self._made_s: deque[float] = deque([0.0] * NUM_RECENT, maxlen=NUM_RECENT)

    def drawn(self, cpu_s: float) -> None:
        """Record the CPU time of the screen's thread since the last frame, everything included."""
        cpu_s = min(cpu_s, SHARE * SLOWEST_S)  # a start or a load must not count as the cost of a frame
        self._cost_s = MEMORY * self._cost_s + (1.0 - MEMORY) * cpu_s if self._cost_s else cpu_s

    def made(self, cpu_s: float) -> None:
        """Record the CPU time for the text of this frame alone, without keys that are typed meanwhile."""
        self._made_s.append(cpu_s)

    def gap_s(self, *, is_moving: bool, late_s: float = 0.0) -> float:
        """Return the gap in seconds. late_s: how much the last frame was late, because the terminal is slow."""
        if (pays_s := self._dear_s / SHARE) > SLOWEST_S:
            return min(pays_s, LONGEST_S)
        fastest = FASTEST_S if is_moving else IDLE_S
        return min(max(fastest, self._cost_s / SHARE, 2.0 * late_s), SLOWEST_S)

    @property
    def _dear_s(self) -> float:
        """The cost of the last frame, at most the NUM_DEAR-th highest of recent ones. Counted for one gap only."""
        return min(self._made_s[-1], sorted(self._made_s)[-NUM_DEAR])
