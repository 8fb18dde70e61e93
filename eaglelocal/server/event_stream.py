"""Requests in progress: carries events from a client's threads to an asyncio task, and cancels abandoned requests.

    async with Asking(line, requests) as asking:
        while events := await asking.next(15.0): ...

Leaving the block early cancels what still runs. Uses clients and events, no HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from concurrent.futures import Executor, ThreadPoolExecutor
from types import TracebackType
from typing import Protocol

from eaglelocal.client.client import OnEvent
from eaglelocal.core.events import EngineSnapshot, Failed, Finished, RequestEvent
from eaglelocal.core.request import AnyRequest, Spec
from eaglelocal.errors import EagleLocalError, EngineError


class Answerer(Protocol):
    """An engine behind a server: a Client for all kinds of requests that restarts after a crash."""

    @property
    def state(self) -> str: ...

    @property
    def restarts(self) -> int: ...

    @property
    def trouble(self) -> str:
        """Return why the engine is away; empty while it runs."""

    def submit(self, request: AnyRequest, on_event: OnEvent) -> None: ...

    def cancel(self, request_id: str) -> None: ...

    def set_spec(self, spec: Spec) -> None: ...

    def snapshot(self) -> EngineSnapshot: ...

    def close(self) -> None: ...


class ClientThread:
    """A client for use in asyncio: calls that may block run in order on one thread per client.

    So a cancel never overtakes its request, and a hanging engine does not block requests to other models.
    """

    def __init__(self, client: Answerer) -> None:
        self.client = client
        self._thread: Executor = ThreadPoolExecutor(1, thread_name_prefix="asking")

    def submit(self, asking: EventStream, request: AnyRequest) -> None:
        self._thread.submit(self._submit, asking, request)

    def cancel(self, request_id: str) -> None:
        with contextlib.suppress(RuntimeError):  # closed meanwhile: nothing runs any more
            self._thread.submit(self.client.cancel, request_id)

    def close(self) -> None:
        """Close the client; blocks for as long as that takes."""
        self.client.close()
        self._thread.shutdown(wait=False)

    def _submit(self, asking: EventStream, request: AnyRequest) -> None:
        try:
            self.client.submit(request, asking.arrive)
        except Exception as error:  # on any error: the caller waits for an answer
            known = error if isinstance(error, EagleLocalError) else EngineError(f"the request cannot be sent: {error}")
            asking.arrive(Failed(request.id, known))


class EventStream:
    """The requests of one call, and their events in order of arrival.

    requests  emptied once they are submitted: the engine has them, and they may contain large images
    """

    def __init__(self, line: ClientThread, requests: list[AnyRequest]) -> None:
        self._line, self._requests = line, requests
        self._loop = asyncio.get_running_loop()
        self._arrived: deque[RequestEvent] = deque()
        self._has_news = asyncio.Event()
        self._running = {request.id for request in requests}
        self.asked_at = time.perf_counter()

    @property
    def is_over(self) -> bool:
        return not self._running and not self._arrived

    def arrive(self, event: RequestEvent) -> None:
        """Take an event; called on a thread of the client."""
        self._arrived.append(event)
        with contextlib.suppress(RuntimeError):  # the event loop has ended, and all readers with it
            self._loop.call_soon_threadsafe(self._has_news.set)

    async def next(self, timeout_s: float) -> list[RequestEvent]:
        """Return the events that have arrived, waiting for at least one; empty on timeout or after the last event."""
        if not self.is_over and not self._arrived:
            self._has_news.clear()
            if not self._arrived:  # it may have come since
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(timeout_s):  # in 3.11 wait_for may lose a cancel that comes with news
                        await self._has_news.wait()
        events = [self._arrived.popleft() for _ in range(len(self._arrived))]
        for event in events:
            if isinstance(event, Finished | Failed):
                self._running.discard(event.request_id)
        return events

    def cancel(self) -> None:
        for request_id in self._running:
            self._line.cancel(request_id)

    async def __aenter__(self) -> EventStream:
        for request in self._requests:
            self._line.submit(self, request)
        self._requests.clear()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.cancel()
