"""Requests in progress: carry events from a client's threads to an asyncio task, and cancel abandoned requests.

    async with EventStream(client_thread, requests) as stream:
        while events := await stream.next(15.0): ...

Leaving the block early cancels what still runs. Knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from concurrent.futures import Executor, ThreadPoolExecutor
from types import TracebackType
from typing import Protocol

from eaglelocal.client.client import Client, OnEvent
from eaglelocal.core.adapters import AdapterMix
from eaglelocal.core.events import Failed, Finished, RequestEvent
from eaglelocal.core.request import AnyRequest, Spec
from eaglelocal.errors import EagleLocalError, EngineError


class RestartingClient(Client, Protocol):
    """A Client for all kinds of requests, whose engine restarts after a crash."""

    @property
    def restarts(self) -> int: ...

    @property
    def trouble(self) -> str:
        """Return why the engine is down; empty while it runs."""

    def submit(self, request: AnyRequest, on_event: OnEvent) -> None: ...

    def set_spec(self, spec: Spec) -> None: ...

    def set_adapters(self, mix: AdapterMix) -> None: ...


class ClientThread:
    """A client for use in asyncio: calls that may block run in order on one thread per client.

    So a cancel never overtakes its request, and a hanging engine does not block requests to other models.
    """

    def __init__(self, client: RestartingClient) -> None:
        self.client = client
        self._thread: Executor = ThreadPoolExecutor(1, thread_name_prefix="client")

    def submit(self, events: EventStream, request: AnyRequest) -> None:
        self._thread.submit(self._submit, events, request)

    def cancel(self, request_id: str) -> None:
        with contextlib.suppress(RuntimeError):  # closed meanwhile: nothing runs any more
            self._thread.submit(self.client.cancel, request_id)

    def close(self) -> None:
        """Close the client; blocks until it is closed."""
        self.client.close()
        self._thread.shutdown(wait=False)

    def _submit(self, events: EventStream, request: AnyRequest) -> None:
        try:
            self.client.submit(request, events.on_event)
        except Exception as error:  # any error: the caller waits for an answer
            failure = error if isinstance(error, EagleLocalError) else EngineError(f"cannot send the request: {error}")
            events.on_event(Failed(request.id, failure))


class EventStream:
    """The requests of one call, and their events in order of arrival.

    requests  emptied once they are submitted: the engine has them, and they may contain large images
    """

    def __init__(self, client: ClientThread, requests: list[AnyRequest]) -> None:
        self._client, self._requests = client, requests
        self._loop = asyncio.get_running_loop()
        self._arrived: deque[tuple[RequestEvent, float]] = deque()
        self._has_arrived, self._has_ended = asyncio.Event(), asyncio.Event()
        self._awaits_end = False
        self._unfinished = {request.id for request in requests}

    @property
    def is_over(self) -> bool:
        return not self._unfinished and not self._arrived

    def on_event(self, event: RequestEvent) -> None:
        """Take an event; called on a thread of the client."""
        is_end = isinstance(event, Finished | Failed)
        self._arrived.append((event, time.perf_counter()))
        if self._awaits_end and not is_end:
            return  # waking the event loop for each token would take a core from the decoding
        with contextlib.suppress(RuntimeError):  # the event loop has ended, and all readers with it
            self._loop.call_soon_threadsafe(self._wake, is_end)

    async def next(self, timeout_s: float) -> list[tuple[RequestEvent, float]]:
        """Return the events that have arrived, waiting for at least one; empty on timeout or after the last event.

        Each comes with the time of its arrival (time.perf_counter).
        """
        if not self.is_over and not self._arrived:
            self._has_arrived.clear()
            if not self._arrived:  # it may have arrived meanwhile
                await wait_for(self._has_arrived, timeout_s)
        return self._take()

    async def next_end(self, timeout_s: float) -> list[tuple[RequestEvent, float]]:
        """Return the events that have arrived once an answer has ended, or after `timeout_s`; perhaps none."""
        self._awaits_end = True
        if not self.is_over:
            await wait_for(self._has_ended, timeout_s)
            self._has_ended.clear()
        return self._take()

    def _wake(self, is_end: bool) -> None:
        self._has_arrived.set()
        if is_end:
            self._has_ended.set()

    def _take(self) -> list[tuple[RequestEvent, float]]:
        events = [self._arrived.popleft() for _ in range(len(self._arrived))]
        for event, _ in events:
            if isinstance(event, Finished | Failed):
                self._unfinished.discard(event.request_id)
        return events

    def cancel(self) -> None:
        for request_id in self._unfinished:
            self._client.cancel(request_id)

    async def __aenter__(self) -> EventStream:
        for request in self._requests:
            self._client.submit(self, request)
        self._requests.clear()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.cancel()


async def wait_for(event: asyncio.Event, timeout_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):  # asyncio.wait_for of 3.11 may lose a cancel at an event
            await event.wait()
