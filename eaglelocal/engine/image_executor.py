"""The executor of requests with images: decodes them one at a time for each owner, owners in turn, then reads requests.

An image may take seconds, and a request may have many. So owners take turns after each image, no owner has more than
one image in work, and a withdrawn request is dropped. An owner's decoded images are limited too: the next request waits
until the earlier ones have a slot. Knows neither files nor models.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import field

from eaglelocal.core.image import MAX_REQUEST_PIXELS
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import ChatRequest

Decode = Callable[[ChatRequest], Iterator[int]]


@dataclass(slots=True, eq=False)
class ImageReading:
    """A request being read: first its images, then its text.

    steps  the first yields the pixels of all images, each further one decodes an image
    """

    request: ChatRequest
    read: Callable[[], object]
    steps: Iterator[int]
    done: Future[object] = field(default_factory=Future)
    num_pixels: int = 0
    is_released: bool = False

    def advance(self) -> bool:
        """Decode the next image, or read the request. Return whether the request is finished or cancelled."""
        if self.done.cancelled():
            return True
        step = next(self.steps, None)
        if step is not None:
            self.num_pixels += step
            return False
        if self.done.set_running_or_notify_cancel():
            try:
                self.done.set_result(self.read())
            except BaseException as error:
                self.done.set_exception(error)
        return True


class ImageExecutor(Executor):
    """An executor of calls whose first argument is a request. Safe from any thread.

    decode   the steps of a request's images, see ImageReading; they raise nothing
    threads  executors of one thread each
    """

    def __init__(self, decode: Decode, threads: Sequence[Executor], *, max_pixels: int = MAX_REQUEST_PIXELS) -> None:
        self._decode, self._threads, self._max_pixels = decode, threads, max_pixels
        self._lock = threading.Lock()
        self._free = list(threads)
        self._lines: OrderedDict[str, deque[ImageReading]] = OrderedDict()  # by owner, in the order of their turns
        self._in_work: dict[str, ImageReading] = {}  # by owner
        self._held: dict[str, tuple[str, int]] = {}  # (owner, pixels) of requests without a slot, by id

    def submit(self, fn: Callable[..., object], /, *args: object, **kwargs: object) -> Future[object]:  # type: ignore[override]
        request = args[0]
        assert isinstance(request, ChatRequest)
        reading = ImageReading(request, lambda: fn(*args, **kwargs), self._decode(request))
        with self._lock:
            self._lines.setdefault(request.owner, deque()).append(reading)
        self._begin_work()
        return reading.done

    def release(self, request_id: str) -> None:
        """Stop counting a request's images: it has a slot, or has ended. A cancelled request is forgotten."""
        with self._lock:
            self._held.pop(request_id, None)
            for reading in self._in_work.values():
                reading.is_released |= reading.request.id == request_id
            for owner, line in list(self._lines.items()):
                kept = [one for one in line if one.request.id != request_id or not one.done.cancelled()]
                self._set_line(owner, kept)
        self._begin_work()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        with self._lock:
            for line in self._lines.values():
                for reading in line:
                    reading.done.cancel()
            self._lines.clear()
        for thread in self._threads:
            thread.shutdown(wait, cancel_futures=cancel_futures)

    def _begin_work(self) -> None:
        with self._lock:
            while self._free and (owner := self._next_owner()) is not None:
                reading = self._in_work[owner] = self._lines[owner][0]
                thread = self._free.pop(0)
                thread.submit(self._work, thread, reading)

    def _next_owner(self) -> str | None:
        return next((owner for owner in self._lines if owner not in self._in_work and self._has_room(owner)), None)

    def _has_room(self, owner: str) -> bool:
        """Return whether the owner's next images fit beside the decoded ones; the first images always fit."""
        held = sum(pixels for one, pixels in self._held.values() if one == owner)
        return not held or held + self._lines[owner][0].num_pixels <= self._max_pixels

    def _work(self, thread: Executor, reading: ImageReading) -> None:
        is_over, owner = reading.advance(), reading.request.owner
        with self._lock:
            self._free.append(thread)
            del self._in_work[owner]
            if owner in self._lines:
                self._lines.move_to_end(owner)
                self._set_line(owner, [one for one in self._lines[owner] if one is not reading or not is_over])
            if is_over and not (reading.is_released or reading.done.cancelled()):
                self._held[reading.request.id] = (owner, reading.num_pixels)
        self._begin_work()

    def _set_line(self, owner: str, readings: Sequence[ImageReading]) -> None:
        self._lines[owner] = deque(readings)
        if not readings:
            del self._lines[owner]
