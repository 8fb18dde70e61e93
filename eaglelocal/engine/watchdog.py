"""Notices an engine process that hangs: in the middle of work, and without a sign of life for too long.

Signs of life are all its messages; while it works it sends at least a Beat a second, unless one step
lasts longer. What is too long depends on whether it computes: a large prompt on a small machine may
take minutes, a process that is stopped or deadlocked uses no processor. `Silence` judges and has no
clock; `Watchdog` is the thread that feeds it, and counts only time that this process lived through too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from eaglelocal.probe.processes import cpu_s

BEAT_S = 1.0  # of the child: how often it tells that its steps go on

_MAX_TICK_S = 1.0
_TICKS_OF_LIMIT = 5  # a short limit is watched more closely
_COMPUTES = 0.005  # share of a tick in which it used a processor


@dataclass(frozen=True, slots=True)
class Beat:
    """From the child: since the last one a step has ended or a command was obeyed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Seconds of silence after which a process that has work counts as hung."""

    still_s: float = 60.0  # while it uses no processor
    computing_s: float = 600.0  # in all
    factor: float = 20.0  # or this many times the longest silence that ended well, where that is more
    loading_still_s: float = 300.0  # while it loads: weights may come from a slow disk
    loading_s: float = 1800.0


@dataclass(slots=True)
class Silence:
    """How long a process has said nothing, and what that means."""

    patience: Patience
    still_s: float = 0.0  # since it last used a processor
    total_s: float = 0.0
    longest_s: float = 0.0  # silence that ended with a sign of life

    def broken(self, *, loading: bool) -> None:
        """It said something. How quiet a load is tells nothing of the steps."""
        if not loading:
            self.longest_s = max(self.longest_s, self.total_s)
        self.still_s = self.total_s = 0.0

    def pardoned(self) -> None:
        """It had nothing to say."""
        self.still_s = self.total_s = 0.0

    def lasted(self, seconds: float, *, computing: bool) -> None:
        self.total_s += seconds
        self.still_s = 0.0 if computing else self.still_s + seconds

    def verdict(self, *, loading: bool) -> str:
        """Why it must be ended, or nothing."""
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
class Watched:
    """What the watchdog asks about a child, and does to it."""

    pid: int
    has_work: Callable[[], bool]  # loading counts
    is_loading: Callable[[], bool]
    end: Callable[[str], None]  # with the reason


@dataclass(slots=True)
class Watchdog:
    """Watches one child, from a thread of its own, while `listening` runs over its messages."""

    watched: Watched
    patience: Patience
    _num_heard: int = 0
    _is_listening: bool = True  # no: a listener of ours has the word, and the child may wait for us
    _over: threading.Event = field(default_factory=threading.Event)

    def listening(self, messages: Iterator[object]) -> Iterator[object]:
        """The messages, watched; beats are kept back."""
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
    """A parent that was stopped (ctrl-z) wakes up to a clock that went on: it has lived through a tick, hardly more."""
    return min(passed_s, 2 * tick_s)


def _has_computed(before_s: float | None, after_s: float | None, lived_s: float) -> bool:
    """Where the system does not tell, the benefit of the doubt: the longer limit holds."""
    return before_s is None or after_s is None or after_s - before_s >= _COMPUTES * lived_s
