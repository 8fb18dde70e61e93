"""Requests on their way to the scheduler: read beside the step loop, so that no answer waits for another's prompt.

Rendering, tokenizing and compiling what binds an answer take from a millisecond to seconds. They run on lanes, which
are executors of one thread each: short requests on the first, in the order of arrival; what may take long on the
others, equal prompts on the same one, so that they are read once. Does not know templates or vocabularies.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from eaglelocal.core.request import AnyRequest
from eaglelocal.engine.faults import as_engine_error
from eaglelocal.errors import EagleLocalError

INPUT_WAIT_S = 0.05  # of a step that has nothing to do but to wait for a request; commands are obeyed between steps
NUM_LONG_LANES = 2
STACK_BYTES = 32 * 1024 * 1024  # address space; what compiles grammars recurses
NICENESS = 5  # of the long lanes: answers come first
# Python's own 5 ms would be waited for at each native call of a step, while another thread runs Python code.
SWITCH_INTERVAL_S = 0.0005

Asked = TypeVar("Asked", bound=AnyRequest)
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared(Generic[Asked, Made]):
    """A request that has been read: what was made of it, or why that is impossible."""

    asked: Asked
    submitted_at_s: float
    made: Made | None = None
    error: EagleLocalError | None = None


class InlineExecutor(Executor):
    """Runs what is submitted at once, in the caller's thread: an engine over it takes the same steps each time."""

    def submit(self, fn: Callable[..., object], /, *args: object, **kwargs: object) -> Future[object]:  # type: ignore[override]
        done: Future[object] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except BaseException as error:
            done.set_exception(error)
        return done


INLINE: tuple[Executor, ...] = (InlineExecutor(),)


def threaded_lanes() -> tuple[Executor, ...]:
    """Return a lane for short requests, and others of a lower priority for the rest."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    short = ThreadPoolExecutor(1, thread_name_prefix="input-short")
    long = [ThreadPoolExecutor(1, f"input-long-{i}", initializer=_lower_priority) for i in range(NUM_LONG_LANES)]
    own_bytes = threading.stack_size(STACK_BYTES)
    for lane in (short, *long):
        lane.submit(time.monotonic).result()  # starts the thread, with this stack
    threading.stack_size(own_bytes)
    return short, *long


def _lower_priority() -> None:
    if sys.platform == "linux":  # elsewhere niceness is the whole process's
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.getpriority(os.PRIO_PROCESS, 0) + NICENESS)


class InputQueue(Generic[Asked, Made]):
    """Reads requests on its lanes. All methods but `wait` return at once; they belong to the engine's thread.

    read       makes of a request what the engine needs; raises EagleLocalError for what cannot be served
    lane_of    the index of a request's lane, given how many there are
    """

    def __init__(
        self,
        read: Callable[[Asked], Made],
        lanes: Sequence[Executor] = INLINE,
        *,
        lane_of: Callable[[Asked, int], int],
    ) -> None:
        self._read, self._lanes, self._lane_of = read, lanes, lane_of
        self._pending: dict[str, Future[Prepared[Asked, Made]]] = {}
        self._done: deque[Future[Prepared[Asked, Made]]] = deque()
        self._news = threading.Condition()

    def __len__(self) -> int:
        return len(self._pending)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._pending

    def submit(self, asked: Asked) -> None:
        lane = self._lanes[self._lane_of(asked, len(self._lanes))]
        reading = lane.submit(self._prepare, asked, time.perf_counter())
        self._pending[asked.id] = reading
        reading.add_done_callback(self._tell)

    def withdraw(self, request_id: str) -> bool:
        """Forget a request that is still being read. False: there is none of this id."""
        reading = self._pending.pop(request_id, None)
        if reading is not None:
            reading.cancel()
        return reading is not None

    def wait(self, timeout_s: float) -> None:
        """Return when a request has been read, or after `timeout_s`."""
        with self._news:
            self._news.wait_for(lambda: bool(self._done), timeout_s)

    def take(self) -> list[Prepared[Asked, Made]]:
        """Return what has been read since the last call, in the order in which it was finished."""
        found = []
        while self._done:
            reading = self._done.popleft()
            if reading.cancelled():
                continue
            prepared = reading.result()
            if self._pending.get(prepared.asked.id) is reading:  # else it was withdrawn
                del self._pending[prepared.asked.id]
                found.append(prepared)
        return found

    def close(self) -> None:
        """Wait for what is being read, and end the lanes: nothing must read with a model that is freed."""
        for lane in self._lanes:
            lane.shutdown(cancel_futures=True)

    def _prepare(self, asked: Asked, submitted_at_s: float) -> Prepared[Asked, Made]:
        try:
            made = self._read(asked)
        except Exception as error:  # a template or a tokenizer that trips over one request must not fail the others
            fault = as_engine_error(error, "the engine failed on the request")
            return Prepared(asked=asked, submitted_at_s=submitted_at_s, error=fault)
        return Prepared(asked=asked, submitted_at_s=submitted_at_s, made=made)

    def _tell(self, reading: Future[Prepared[Asked, Made]]) -> None:
        with self._news:
            self._done.append(reading)
            self._news.notify()
