"""Notice an engine process that hangs: it has work, and has sent nothing for too long.

Every message is a sign of life; a working process sends at least a Beat a second, unless one step lasts longer. The
limit depends on CPU use: a large prompt on a small machine may take minutes, but a stopped or deadlocked process uses
no CPU. `Silence` judges and has no clock; `Watchdog` is the thread that feeds it, and counts only time during which
this process was running too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import field

from eaglelocal.core.records import dataclass
from eaglelocal.processes.child_process import Usage, read_usage

BEAT_S = 1.0  # between the child's Beats

_MAX_TICK_S = 1.0
_TICKS_OF_LIMIT = 5  # ticks within the shortest limit, at least
_MIN_CPU_SHARE = 0.005  # CPU use of a tick, as a share, that counts as computing


@dataclass(frozen=True, slots=True)
class Beat:
    """A sign of life from the child: a step ended or a command was handled since the last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SilenceLimits:
    """Seconds of silence after which a process that has work counts as hung."""

    still_s: float = 60.0  # while it uses no CPU
    computing_s: float = 600.0  # in total
    factor: float = 20.0  # or so many times the longest silence that ended well, if that is longer
    loading_still_s: float = 300.0  # while it loads and uses no CPU: weights may come from a slow disk
    loading_s: float = 1800.0


@dataclass(slots=True)
class Silence:
    """The current silence of a process, and whether it is too long."""

    limits: SilenceLimits
    still_s: float = 0.0  # since it last used the CPU
    total_s: float = 0.0
    longest_s: float = 0.0  # silence that ended with a sign of life

    def end(self, *, is_loading: bool) -> None:
        """End the silence by a message. Silence during a load does not count as silence between steps."""
        if not is_loading:
            self.longest_s = max(self.longest_s, self.total_s)
        self.still_s = self.total_s = 0.0

    def reset(self) -> None:
        """Forget the silence of a process that had no work."""
        self.still_s = self.total_s = 0.0

    def add(self, duration_s: float, *, is_computing: bool) -> None:
        self.total_s += duration_s
        self.still_s = 0.0 if is_computing else self.still_s + duration_s

    def verdict(self, *, is_loading: bool) -> str:
        """Return why the process must be killed, or ""."""
        still_limit_s, limit_s = self._current_limits(is_loading=is_loading)
        if self.still_s >= still_limit_s:
            return f"it hangs: no sign of life for {self.total_s:.3g} s, and it does not compute"
        if self.total_s >= limit_s:
            return f"it hangs: no sign of life for {self.total_s:.3g} s, though it computes"
        return ""

    def _current_limits(self, *, is_loading: bool) -> tuple[float, float]:
        limits = self.limits
        if is_loading:
            return limits.loading_still_s, limits.loading_s
        normal_s = limits.factor * self.longest_s
        still_s = max(limits.still_s, min(normal_s, limits.computing_s))
        return still_s, max(limits.computing_s, normal_s)


@dataclass(slots=True, kw_only=True)
class Watchdog:
    """Watches one child, from a thread of its own, while `watch` iterates over its messages."""

    pid: int
    limits: SilenceLimits
    has_work: Callable[[], bool]  # loading counts
    is_loading: Callable[[], bool]
    kill: Callable[[str], None]  # with the reason
    _num_messages: int = 0
    _is_receiving: bool = True  # False while our listener handles a message: the child may be waiting for us
    _has_ended: threading.Event = field(default_factory=threading.Event)

    def watch(self, messages: Iterator[object]) -> Iterator[object]:
        """Yield the messages, without Beats, while the watchdog thread runs."""
        thread = threading.Thread(target=self._watch, name="engine-watchdog", daemon=True)
        thread.start()
        try:
            for message in messages:
                self._num_messages += 1
                if not isinstance(message, Beat):
                    self._is_receiving = False
                    yield message
                    self._is_receiving = True
        finally:
            self._has_ended.set()
            thread.join()

    def _watch(self) -> None:
        silence = Silence(self.limits)
        tick_s = min(_MAX_TICK_S, min(self.limits.still_s, self.limits.loading_still_s) / _TICKS_OF_LIMIT)
        num_messages, usage, at_s = -1, read_usage(self.pid), time.monotonic()
        while not self._has_ended.wait(tick_s):
            passed_s, at_s = time.monotonic() - at_s, time.monotonic()
            counted_s = limit_tick(passed_s, tick_s)
            if num_messages != self._num_messages:
                num_messages = self._num_messages
                silence.end(is_loading=self.is_loading())
            elif not (self._is_receiving and self.has_work()):
                silence.reset()
            else:
                before, usage = usage, read_usage(self.pid)
                silence.add(counted_s, is_computing=_has_computed(before, usage, counted_s))
                if reason := silence.verdict(is_loading=self.is_loading()):
                    self.kill(reason)
                    return


def limit_tick(passed_s: float, tick_s: float) -> float:
    """Return the seconds that count, two ticks at most: a parent that was stopped (ctrl-z) received no messages."""
    return min(passed_s, 2 * tick_s)


def _has_computed(before: Usage | None, after: Usage | None, counted_s: float) -> bool:
    """Return whether the process used CPU; True if that is unknown, so that the longer limit holds."""
    return before is None or after is None or after.cpu_s - before.cpu_s >= _MIN_CPU_SHARE * counted_s
