"""Keeps one engine process alive: starts it, hears it out, and when it dies decides what comes next.

One thread does all of this, and calls the listener from there, in order; another watches for a process
that hangs (watchdog.py). Only crashes in a row add up to giving up: a process that has said tokens, or was
ready for `stable_s`, has shown that model and machine can do it, so its end starts a new count. What
cannot load, or dies of the first thing it does, ends as a crash loop, however slowly it loads.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Literal, Protocol, cast

from eaglelocal.core.events import (
    EngineInfo,
    EngineSnapshot,
    Finished,
    LoadFailed,
    LoadProgress,
    Ready,
    RequestEvent,
    SnapshotTaken,
    Tokens,
)
from eaglelocal.core.plan import Plan
from eaglelocal.engine.child import EngineChild
from eaglelocal.engine.ending import Broken
from eaglelocal.engine.watchdog import Patience, Watchdog, Watched
from eaglelocal.errors import EagleLocalError, EngineError

EngineState = Literal["loading", "ready", "restarting", "failed", "closed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """When to restart: at once after the first crash, then after 1, 2, 4 ... `first_delay_s`."""

    max_crashes: int = 5  # in a row, of processes that said nothing; with this one the engine stays down
    stable_s: float = 120.0  # of being ready, after which a crash is the first again
    first_delay_s: float = 1.0
    max_delay_s: float = 8.0
    wait_limit_s: float = 60.0  # how long requests wait for an engine that is down
    patience: Patience = field(default_factory=Patience)  # with a process that says nothing

    def delay_s(self, crashes: int) -> float | None:
        """Seconds to wait after the crash with this number, counted from 1; None: give up."""
        if crashes >= self.max_crashes:
            return None
        return 0.0 if crashes == 1 else min(self.first_delay_s * 2.0 ** (crashes - 2), self.max_delay_s)


DEFAULT_POLICY = RestartPolicy()


class Listener(Protocol):
    """Who is told; every method is called from the supervisor's thread and must not raise."""

    @property
    def awaits_answers(self) -> bool:
        """Has the process been asked what it has not answered? From any thread."""

    def on_progress(self, progress: LoadProgress) -> None: ...

    def on_ready(self, child: EngineChild, info: EngineInfo) -> None: ...

    def on_events(self, events: list[RequestEvent]) -> None: ...

    def on_snapshot(self, snapshot: EngineSnapshot) -> None: ...

    def on_lost(self, error: EagleLocalError, *, for_good: bool) -> None:
        """The process is gone; unless for good, another one is on its way."""


@dataclass(slots=True)
class _Life:
    """What is known of one child, from its start to its end."""

    ready_at_s: float | None = None
    last_message: EagleLocalError | None = None  # why it ends, said by itself
    has_answered: bool = False

    @property
    def is_loading(self) -> bool:
        return self.ready_at_s is None

    def hear(self, events: list[RequestEvent]) -> None:
        if not self.has_answered:
            self.has_answered = any(isinstance(event, (Tokens, Finished)) for event in events)

    def was_good(self, stable_s: float) -> bool:
        lasted = self.ready_at_s is not None and time.monotonic() - self.ready_at_s >= stable_s
        return self.has_answered or lasted


class Supervisor:
    """Owner of the engine process."""

    def __init__(self, plan: Plan, builder: str, policy: RestartPolicy, listener: Listener) -> None:
        self._plan = plan
        self._builder = builder
        self._policy = policy
        self._listener = listener
        self._lock = threading.Lock()  # of _child against close()
        self._child: EngineChild | None = None
        self._closing = threading.Event()
        self._state: EngineState = "loading"
        self._crashes = 0
        self._restarts = 0
        self._thread = threading.Thread(target=self._run, name="engine-supervisor", daemon=True)

    @property
    def state(self) -> EngineState:
        return self._state

    @property
    def restarts(self) -> int:
        """How often a process was started anew."""
        return self._restarts

    @property
    def pid(self) -> int | None:
        child = self._child
        return child.pid if child else None

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End the process and the thread. Safe from any thread, more than once, before start too."""
        self._closing.set()
        with self._lock:
            child = self._child
        if child is not None:
            child.stop(gently=self._state == "ready")
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        delay_s: float | None = 0.0
        while delay_s is not None and not self._closing.wait(delay_s):
            life = _Life()
            error = self._live(life)
            delay_s = self._follow(life, error)
        if self._closing.is_set():
            self._state = "closed"
            self._listener.on_lost(EngineError("the engine was closed"), for_good=True)

    def _live(self, life: _Life) -> EagleLocalError:
        """Start a process and hear it out; why it ended."""
        try:
            child = EngineChild(self._builder, self._plan)
        except OSError as error:
            return EngineError(f"the engine process cannot be started: {error}", hint="free memory or processes")
        with self._lock:
            self._child = child
        if self._closing.is_set():
            child.stop(gently=False)
        for message in self._watchdog(child, life).listening(child.messages()):
            self._hear(child, message, life)
        ending = child.bury()
        with self._lock:
            self._child = None
        return life.last_message or ending.error(" while it loaded the model" if life.is_loading else "")

    def _watchdog(self, child: EngineChild, life: _Life) -> Watchdog:
        def has_work() -> bool:
            return self._state != "ready" or self._listener.awaits_answers

        watched = Watched(pid=child.pid, has_work=has_work, is_loading=lambda: life.is_loading, end=child.end)
        return Watchdog(watched, self._policy.patience)

    def _hear(self, child: EngineChild, message: object, life: _Life) -> None:
        match message:
            case list():
                events = cast("list[RequestEvent]", message)
                life.hear(events)
                self._listener.on_events(events)
            case LoadProgress():
                self._listener.on_progress(message)
            case Ready(info):
                life.ready_at_s = time.monotonic()
                self._state = "ready"
                self._listener.on_ready(child, info)
            case LoadFailed(error):
                life.last_message = error
            case Broken(error):
                life.last_message = error
                self._state = "restarting"
                self._listener.on_lost(error, for_good=False)  # nothing must be sent to it while it ends
            case SnapshotTaken(snapshot):
                self._listener.on_snapshot(snapshot)
            case _:
                child.end(f"its pipe carries an unknown message, {type(message).__name__}")

    def _follow(self, life: _Life, error: EagleLocalError) -> float | None:
        """What comes after an end: the seconds until the next start, or None."""
        if self._closing.is_set():
            return None
        self._crashes = 1 if life.was_good(self._policy.stable_s) else self._crashes + 1
        never_ran = life.is_loading and self._restarts == 0
        delay_s = None if never_ran else self._policy.delay_s(self._crashes)
        if delay_s is None:
            self._state = "failed"
            self._listener.on_lost(error if never_ran else _given_up(error, self._crashes), for_good=True)
        else:
            self._state = "restarting"
            self._restarts += 1
            self._listener.on_lost(error, for_good=False)
        return delay_s


def _given_up(error: EagleLocalError, crashes: int) -> EngineError:
    return EngineError(
        f"the engine failed {crashes} times in a row and is not started again: {error.message}", hint=error.hint
    )
