"""Notices an engine process that hangs: it has work, and has sent nothing for too long.

Every message is a sign of life; a working process sends at least a Beat a second, unless one step lasts longer. The
limit depends on CPU use: a large prompt on a small machine may take minutes, but a stopped or deadlocked process uses
no CPU. `Silence` judges and has no clock; `Watchdog` is the thread that feeds it, and counts only time during which
this process was running too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from eaglelocal.probe.process_info import cpu_s

BEAT_S = 1.0  # between the child's Beats

_MAX_TICK_S = 1.0
_TICKS_OF_LIMIT = 5  # ticks within the shortest limit, at least
_COMPUTES = 0.005  # CPU use of a tick, as a share, that counts as computing


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
    """The current silence of a process, and the judgement of it."""

    patience: SilenceLimits
    still_s: float = 0.0  # since it last used the CPU
    total_s: float = 0.0
    longest_s: float = 0.0  # silence that ended with a sign of life

    def broken(self, *, loading: bool) -> None:
        """Record a message. Silence during a load does not count as normal silence of steps."""
        if not loading:
            self.longest_s = max(self.longest_s, self.total_s)
        self.still_s = self.total_s = 0.0

    def pardoned(self) -> None:
        """Reset the silence of a process that had no work."""
        self.still_s = self.total_s = 0.0

    def lasted(self, seconds: float, *, computing: bool) -> None:
        self.total_s += seconds
        self.still_s = 0.0 if computing else self.still_s + seconds

    def verdict(self, *, loading: bool) -> str:
        """Return why the process must be killed, or ""."""
        still_limit_s, limit_s = self._limits(loading=loading)
        if self.still_s >= still_limit_s:
            return f"it hangs: no sign of life for {self.total_s:.3g} s, and it does not compute"
        if self.total_s >= limit_s:
            return f"it hangs: no sign of life for {self.total_s:.3g} s, though it computes"
        return ""

    def _limits(self, *, loading: bool) -> tuple[float, float]:
        patience = self.patience
        if loading:
            return patience.loading_still_s, patience.loading_s
        normal_s = patience.factor * self.longest_s
        still_s = max(patience.still_s, min(normal_s, patience.computing_s))
        return still_s, max(patience.computing_s, normal_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedChild:
    """The watchdog's access to a child."""

    pid: int
    has_work: Callable[[], bool]  # loading counts
    is_loading: Callable[[], bool]
    end: Callable[[str], None]  # with the reason


@dataclass(slots=True)
class Watchdog:
    """Watches one child, from a thread of its own, while `listening` iterates over its messages."""

    watched: WatchedChild
    patience: SilenceLimits
    _num_heard: int = 0
    _is_listening: bool = True  # False while our listener handles a message: the child may be waiting for us
    _over: threading.Event = field(default_factory=threading.Event)

    def listening(self, messages: Iterator[object]) -> Iterator[object]:
        """Yield the messages, without Beats, while the watchdog thread runs."""
        thread = threading.Thread(target=self._watch, name="engine-watchdog", daemon=True)
        thread.start()
        try:
            for message in messages:
                self._num_heard += 1
                if not isinstance(message, Beat):
                    self._is_listening = False
                    yield message
                    self._is_listening = True
        finally:
            self._over.set()
            thread.join()

    def _watch(self) -> None:
        silence = Silence(self.patience)
        tick_s = min(_MAX_TICK_S, min(self.patience.still_s, self.patience.loading_still_s) / _TICKS_OF_LIMIT)
        num_heard, used_s, at_s = -1, cpu_s(self.watched.pid), time.monotonic()
        while not self._over.wait(tick_s):
            passed_s, at_s = time.monotonic() - at_s, time.monotonic()
            lived_s = lived_through(passed_s, tick_s)
            if num_heard != self._num_heard:
                num_heard = self._num_heard
                silence.broken(loading=self.watched.is_loading())
            elif not (self._is_listening and self.watched.has_work()):
                silence.pardoned()
            else:
                before_s, used_s = used_s, cpu_s(self.watched.pid)
                silence.lasted(lived_s, computing=_has_computed(before_s, used_s, lived_s))
                if reason := silence.verdict(loading=self.watched.is_loading()):
                    self.watched.end(reason)
                    return


def lived_through(passed_s: float, tick_s: float) -> float:
    """Return the seconds that count, two ticks at most: a parent that was stopped (ctrl-z) received no messages."""
    return min(passed_s, 2 * tick_s)


def _has_computed(before_s: float | None, after_s: float | None, lived_s: float) -> bool:
    """Return whether the process used CPU; True if that is unknown, so that the longer limit holds."""
    return before_s is None or after_s is None or after_s - before_s >= _COMPUTES * lived_s
