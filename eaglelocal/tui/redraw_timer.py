"""A timer for drawing: calls a function as often as the frame rate allows, and measures what that costs."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

from textual.message_pump import MessagePump

OnTick = Callable[[float], bool]  # takes the time (monotonic seconds), returns True if anything moves


class RedrawTimer:
    """A timer that ticks on the screen's thread, from `start` on for as long as its owner lives."""

    def __init__(self, owner: MessagePump, on_tick: OnTick) -> None:
        self._owner, self._on_tick, self._frame_rate = owner, on_tick, FrameRate()
        self._is_paused = False
        self._cpu_s, self._due_at = 0.0, 0.0

    def start(self) -> None:
        """Tick now, and from then on as the frame rate says."""
        self._cpu_s, self._due_at = time.thread_time(), time.monotonic()
        self._tick()

    def set_paused(self, is_paused: bool) -> None:
        """Stop drawing, so that the screen stays as it is, or go on."""
        self._is_paused = is_paused

    def _tick(self) -> None:
        now, cpu_s = time.monotonic(), time.thread_time()
        self._frame_rate.add_cpu_time(cpu_s - self._cpu_s)
        late_s = max(now - self._due_at, 0.0)
        self._cpu_s = cpu_s
        is_moving = not self._is_paused and self._on_tick(now)
        self._frame_rate.add_frame_cost(time.thread_time() - cpu_s)
        gap_s = self._frame_rate.next_gap_s(is_moving=is_moving, late_s=late_s)
        self._due_at = now + gap_s
        # not Textual's timer, which would create a task each time
        asyncio.get_running_loop().call_later(gap_s, self._owner.call_next, self._tick)


# ---- frame rate: decide how often the screen is drawn: eight times a second at best, less if that costs more than
# its CPU share
#
# Pure: the caller says what drawing cost. On a small machine, CPU time for drawing is taken from the engine.
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
