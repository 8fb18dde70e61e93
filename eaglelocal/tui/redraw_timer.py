"""A timer for drawing: calls a function as often as the frame rate allows, and measures what that costs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from textual.message_pump import MessagePump

from eaglelocal.tui.frame_rate import FrameRate

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
