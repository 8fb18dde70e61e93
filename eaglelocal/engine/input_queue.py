"""Requests on their way to the scheduler: read beside the step loop, so that no answer waits for another's prompt.

Rendering, tokenizing and compiling what binds an answer take from a millisecond to seconds. They run on lanes, which
are executors of one thread each, in the order of arrival; which one reads a request is somebody else's to say
(input_size.py). Does not know templates or vocabularies.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

from eaglelocal.core.request import AnyRequest
from eaglelocal.engine.faults import as_engine_error
from eaglelocal.errors import EagleLocalError, ResourceError

INPUT_WAIT_S = 0.05  # of a step that has nothing to do but to wait for a request; commands are obeyed between steps
STACK_BYTES = 32 * 1024 * 1024  # address space; what compiles grammars recurses
NICENESS = 10  # answers come first
# Python's own 5 ms would be waited for at each native call of a step, while another thread runs Python code.
SWITCH_INTERVAL_S = 0.0005

Asked = TypeVar("Asked", bound=AnyRequest)
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared(Generic[Asked, Made]):
    """A request that has been read: what was made of it, or why that is impossible."""

    asked: Asked
    submitted_at_s: float
    read_s: float
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


def threaded_lanes(num_low: int = 2) -> tuple[Executor, ...]:
    """Return a lane, and others of a lower priority. Raises ResourceError where no thread can be started."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    first = ThreadPoolExecutor(1, thread_name_prefix="input")
    low = [ThreadPoolExecutor(1, f"input-low-{i}", initializer=_lower_priority) for i in range(num_low)]
    own_bytes = threading.stack_size(STACK_BYTES)
    try:
        for lane in (first, *low):
            lane.submit(time.monotonic).result()  # starts the thread, with this stack
    except RuntimeError as error:
        raise ResourceError(f"no thread can be started: {error}", hint="free processes or memory") from error
    finally:
        threading.stack_size(own_bytes)
    return first, *low


def _lower_priority() -> None:
    if sys.platform == "linux":  # elsewhere niceness is the whole process's
        with suppress(OSError):  # it may be forbidden, and is a wish
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
        reading.add_done_callback(self._announce)

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
        began_s = time.perf_counter()
        made, error = self._read_or_fail(asked)
        read_s = time.perf_counter() - began_s
        return Prepared(asked=asked, submitted_at_s=submitted_at_s, read_s=read_s, made=made, error=error)

    def _read_or_fail(self, asked: Asked) -> tuple[Made | None, EagleLocalError | None]:
        try:
            return self._read(asked), None
        except BaseException as error:  # what trips over one request, be it a panic of Rust's, must not fail the others
            return None, as_engine_error(error, "the engine failed on the request")

    def _announce(self, reading: Future[Prepared[Asked, Made]]) -> None:
        with self._news:
            self._done.append(reading)
            self._news.notify()
