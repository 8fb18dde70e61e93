"""Read requests on executors outside the step loop, so that no answer waits for another request's prompt.

Rendering, tokenizing and compiling constraints take from a millisecond to seconds. Each executor has one thread and
keeps the order of arrival, except for images (image_executor.py). prompt_tokens.py chooses a request's executor. Does
not know templates or vocabularies.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Generic, TypeVar

from eaglelocal.core.events import Begun, Failed, ReportWork, RequestEvent, Rested
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import AnyRequest, ChatRequest
from eaglelocal.engine.conversation_files import ConversationFiles
from eaglelocal.engine.image_executor import ImageExecutor
from eaglelocal.engine.input_processor import InputProcessor, ReadRequest
from eaglelocal.engine.prompt_tokens import IMAGE_EXECUTOR, ExecutorChooser, count_chars, is_read_quickly
from eaglelocal.engine.running_answer import make_count_events, make_prompted
from eaglelocal.engine.step_times import Clock
from eaglelocal.errors import EagleLocalError, ResourceError
from eaglelocal.processes.this_process import lower_thread_priority
from eaglelocal.scheduler.host_swap import MIN_STORED_ROWS
from eaglelocal.scheduler.scheduler import Scheduler
from eaglelocal.worker.exit_reason import make_engine_error

INPUT_WAIT_S = 0.05  # a step without other work waits this long for a request; commands are handled between steps
STACK_BYTES = 32 * 1024 * 1024  # of address space; the grammar compiler recurses
NICENESS = 10  # of low-priority threads: decoding goes first
# Each native call of a step releases the GIL, and waits this long to get it back; Python's default is 5 ms.
SWITCH_INTERVAL_S = 0.0005

RequestT = TypeVar("RequestT", bound=AnyRequest)
ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared(Generic[RequestT, ResultT]):
    """A request that has been read: its result or its error."""

    request: RequestT
    submitted_at_s: float
    read_s: float
    result: ResultT | None = None
    error: EagleLocalError | None = None


class InlineExecutor(Executor):
    """An executor that runs each call at once in the caller's thread, which makes an engine's steps deterministic."""

    def submit(self, fn: Callable[..., object], /, *args: object, **kwargs: object) -> Future[object]:  # type: ignore[override]
        done: Future[object] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except BaseException as error:
            done.set_exception(error)
        return done


@dataclass(frozen=True, slots=True)
class InputExecutors:
    """Executors that read requests, and parts of their prompts from `files` on disk, if there are any.

    `report` gets each event of work on a request, on the thread that does it; the engine reports its own work to it.
    """

    executors: Sequence[Executor] = (InlineExecutor(),)
    report: ReportWork = lambda event: None
    files: ConversationFiles | None = None


INLINE = InputExecutors()


def start_executors(
    num_low: int = 4, *, report: ReportWork = INLINE.report, files: ConversationFiles | None = None
) -> InputExecutors:
    """Start one thread, and `num_low` with a lower priority. Raises ResourceError if no thread can be started."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    first = ThreadPoolExecutor(1, thread_name_prefix="input")
    low = [ThreadPoolExecutor(1, f"input-low-{i}", initializer=_lower_priority) for i in range(num_low)]
    own_bytes = threading.stack_size(STACK_BYTES)
    try:
        for executor in (first, *low):
            executor.submit(time.monotonic).result()  # starts the thread, with this stack
    except RuntimeError as error:
        raise ResourceError(f"no thread can be started: {error}", hint="free processes or memory") from error
    finally:
        threading.stack_size(own_bytes)
    return InputExecutors((first, *low), report, files)


def _lower_priority() -> None:
    if sys.platform == "linux":  # elsewhere niceness applies to the whole process
        lower_thread_priority(os.getpriority(os.PRIO_PROCESS, 0) + NICENESS)


class InputQueue(Generic[RequestT, ResultT]):
    """A queue of requests that executors read. Belongs to the engine's thread; only `wait` and `close` block.

    read             converts a request for the engine; raises EagleLocalError if it cannot be served
    choose_executor  takes a request and the number of executors; returns an index
    """

    def __init__(
        self,
        read: Callable[[RequestT], ResultT],
        input_executors: InputExecutors = INLINE,
        *,
        choose_executor: Callable[[RequestT, int], int],
    ) -> None:
        self._read, self._choose_executor = read, choose_executor
        self._executors, self._report = input_executors.executors, input_executors.report
        self._pending: dict[str, Future[Prepared[RequestT, ResultT]]] = {}
        self._done: deque[Future[Prepared[RequestT, ResultT]]] = deque()
        self._has_done = threading.Condition()

    def __len__(self) -> int:
        return len(self._pending)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._pending

    def submit(self, request: RequestT, *, at_once: bool = False) -> None:
        """Read a request on its executor; `at_once` in this thread, unless it would overtake another."""
        is_inline = at_once and all(reading.done() for reading in self._pending.values())
        executor = (
            INLINE.executors[0] if is_inline else self._executors[self._choose_executor(request, len(self._executors))]
        )
        reading = executor.submit(self._prepare, request, time.perf_counter())
        self._pending[request.id] = reading
        reading.add_done_callback(self._announce)

    def withdraw(self, request_id: str) -> bool:
        """Forget a request that is still being read. Returns False if there is none with this id."""
        reading = self._pending.pop(request_id, None)
        if reading is not None:
            reading.cancel()
        return reading is not None

    def wait(self, timeout_s: float) -> None:
        """Return when a request has been read, or after `timeout_s`."""
        with self._has_done:
            self._has_done.wait_for(lambda: bool(self._done), timeout_s)

    def take(self) -> list[Prepared[RequestT, ResultT]]:
        """Return the requests that have been read since the last call, in the order in which they finished."""
        taken = []
        while self._done:
            reading = self._done.popleft()
            if reading.cancelled():
                continue
            prepared = reading.result()
            if self._pending.get(prepared.request.id) is reading:  # else it was withdrawn
                del self._pending[prepared.request.id]
                taken.append(prepared)
        return taken

    def close(self) -> None:
        """Wait for requests being read, and end the executors: no reader may use a model that is being freed."""
        for executor in self._executors:
            executor.shutdown(cancel_futures=True)

    def _prepare(self, request: RequestT, submitted_at_s: float) -> Prepared[RequestT, ResultT]:
        self._report(Begun(request.id, is_reading=True))
        began_s = time.perf_counter()
        result, error = None, None
        try:
            result = self._read(request)
        except BaseException as problem:  # an error in one request, even a Rust panic, must not fail the others
            error = make_engine_error(problem, "the engine failed on the request")
        read_s = time.perf_counter() - began_s
        self._report(Rested(request.id))
        return Prepared(request=request, submitted_at_s=submitted_at_s, read_s=read_s, result=result, error=error)

    def _announce(self, reading: Future[Prepared[RequestT, ResultT]]) -> None:
        with self._has_done:
            self._done.append(reading)
            self._has_done.notify()


# ---- waiting requests: the requests without a slot: being read on executors, or in the scheduler's queue
class WaitingRequests:
    """Requests from `submit` until `start`, when they get a slot."""

    def __init__(
        self,
        input_processor: InputProcessor,
        scheduler: Scheduler,
        input_executors: InputExecutors,
    ) -> None:
        """Take ownership of the input processor and the executors; from IMAGE_EXECUTOR on they read images."""
        self._input_processor, self._scheduler = input_processor, scheduler
        self._files = input_executors.files
        self._chooser = ExecutorChooser()
        executors = input_executors.executors
        self._image_executor = ImageExecutor(input_processor.decode_images, executors[IMAGE_EXECUTOR:])
        if len(executors) > IMAGE_EXECUTOR:
            input_executors = replace(input_executors, executors=(*executors[:IMAGE_EXECUTOR], self._image_executor))
        self._queue = InputQueue(self._read, input_executors, choose_executor=self._chooser.choose)
        self._submitted_at: dict[str, float] = {}  # of requests in the scheduler's queue

    def __len__(self) -> int:
        return len(self._queue) + self._scheduler.num_waiting

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._queue or request_id in self._submitted_at

    @property
    def num_reading(self) -> int:
        """The number of requests that are still being read."""
        return len(self._queue)

    def submit(self, request: ChatRequest) -> None:
        """Read the request, then queue it. A quick one is read at once if no request waits for the next step."""
        needs_no_disk = self._files is None or count_chars(request) < MIN_STORED_ROWS
        at_once = needs_no_disk and is_read_quickly(request) and not self._scheduler.has_work
        self._queue.submit(request, at_once=at_once)

    def _read(self, chat: ChatRequest) -> ReadRequest:
        """Read a request on an executor, and the part of its prompt that is on disk."""
        prompt, request = self._input_processor.process(chat)
        if self._files is not None and request is not None and request.reuses_cache:
            prefixes = self._scheduler.prefix_cache
            self._files.fetch(request, prefixes.num_held(request), prefixes.swap.max_bytes)
        return prompt, request

    def wait(self) -> None:
        """Wait up to INPUT_WAIT_S for a request to have been read."""
        self._queue.wait(INPUT_WAIT_S)

    def enqueue(self) -> list[RequestEvent]:
        """Pass the requests that have been read to the scheduler; return the events of requests that need no slot."""
        read = self._queue.take()
        if read and not self._queue:
            self._input_processor.prompts.forget_images()
        return [event for prepared in read for event in self._enqueue(prepared)]

    def _enqueue(self, prepared: Prepared[ChatRequest, ReadRequest]) -> list[RequestEvent]:
        chat = prepared.request
        self._chooser.learn(chat, prepared.read_s)
        if prepared.result is None:
            assert prepared.error is not None
            self._image_executor.release(chat.id)
            return [Failed(chat.id, prepared.error)]
        prompt, request = prepared.result
        events: list[RequestEvent] = []
        if chat.tells_prompt:
            events.append(make_prompted(chat.id, prompt, self._input_processor.vocabulary))
        if request is None:
            self._image_executor.release(chat.id)
            return [*events, *make_count_events(chat.id, prompt.num_rows)]
        self._submitted_at[chat.id] = prepared.submitted_at_s
        self._scheduler.add(request)
        return events

    def start(self, request_id: str) -> Clock:
        """Return the clock of a request that gets a slot now."""
        self._image_executor.release(request_id)
        return Clock(self._submitted_at.pop(request_id), time.perf_counter())

    def withdraw(self, request_id: str) -> bool:
        """Forget a request that has no slot yet. Returns False if there is none with this id."""
        is_reading = self._queue.withdraw(request_id)
        is_queued = not is_reading and self._scheduler.withdraw(request_id)
        if is_queued:
            del self._submitted_at[request_id]
        self._image_executor.release(request_id)
        self._input_processor.forget_images(request_id)
        return is_reading or is_queued

    def close(self) -> None:
        self._input_processor.close()  # first: it ends a rendering in progress
        self._queue.close()
