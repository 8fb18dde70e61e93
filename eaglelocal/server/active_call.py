"""An HTTP call in progress: its requests' events as they arrive, its answers, its time limit, its cancellation."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections import deque
from collections.abc import Awaitable, Sequence
from dataclasses import replace

from eaglelocal.core.events import Failed, Finished, RequestEvent, Started
from eaglelocal.core.request import AnyRequest, ChatRequest, EmbedRequest
from eaglelocal.server.access_log import current_record
from eaglelocal.server.answer_state import AnswerState
from eaglelocal.server.http_errors import Problem, to_problem
from eaglelocal.server.loaded_models import ClientThread, LoadedModel

PROGRESS_S = 0.25  # interval of updates for the monitor, while an answer is sent as a whole


class ActiveCall:
    """The answers to one HTTP call, from waiting for its model until all have ended."""

    def __init__(self, model: str, requests: Sequence[AnyRequest], limit_s: float) -> None:
        """`limit_s` is the longest time from now to the end of the last answer."""
        requested_at = time.perf_counter()
        self.model = model
        self.choices = [
            AnswerState(i, drop_messages(request), requested_at, system_hash=hash_system_prompt(request))
            for i, request in enumerate(requests)
        ]
        self._by_id = {choice.request.id: choice for choice in self.choices}
        self._limit_s, self._ends_at = limit_s, requested_at + limit_s
        self._events: EventStream | None = None
        self._model_timeout: asyncio.Timeout | None = None  # while it waits for its model
        self._cancel_reason: Problem | None = None

    async def wait_for_model(self, model: Awaitable[LoadedModel]) -> LoadedModel:
        """Return the model once it is loaded. Raises Problem on failure, timeout or cancellation."""
        try:
            async with asyncio.timeout(self._limit_s) as self._model_timeout:
                return await model
        except TimeoutError:
            raise self._cancel_reason or too_long(self._limit_s) from None
        except Problem:
            for choice in self.choices:
                choice.is_refused = True
            raise
        finally:
            self._model_timeout = None

    def attach(self, events: EventStream) -> None:
        """Take the events of the submitted requests; cancel the requests if the call was already cancelled."""
        self._events = events
        if self._cancel_reason is not None:
            events.cancel()

    def cancel(self, reason: Problem) -> None:
        """Cancel the call; its client gets `reason`."""
        self._cancel_reason = self._cancel_reason or reason
        if self._events is not None:
            self._events.cancel()
        elif self._model_timeout is not None:
            self._model_timeout.reschedule(asyncio.get_running_loop().time())

    @property
    def is_submitted(self) -> bool:
        """Return whether the engine has the requests; False while the call waits for its model."""
        return self._events is not None

    @property
    def is_over(self) -> bool:
        return all(choice.is_over for choice in self.choices)

    async def next(self, timeout_s: float) -> list[AnswerState]:
        """Return the choices with new events, none on timeout. Raises Problem when one failed or the limit is over."""
        assert self._events is not None
        return self._apply(await self._events.next(self._clip(timeout_s)))

    async def complete(self) -> list[AnswerState]:
        """Return all choices once all are complete. Raises Problem."""
        assert self._events is not None
        while not self.is_over:
            self._apply(await self._events.next(self._clip(PROGRESS_S), until_end=True))
        return self.choices

    def _clip(self, timeout_s: float) -> float:
        """Return the timeout, or the seconds until the limit. Raises Problem when the limit is over."""
        left_s = self._ends_at - time.perf_counter()
        if left_s <= 0:
            raise too_long(self._limit_s)
        return min(timeout_s, left_s)

    def _apply(self, events: Sequence[tuple[RequestEvent, float]]) -> list[AnswerState]:
        """Update the choices and return those that changed. Raises Problem when one failed."""
        changed = {}
        for event, arrived_at in events:
            choice = self._by_id[event.request_id]
            choice.apply(event, arrived_at)
            if isinstance(event, Started) and event.unbound:
                current_record().warn(f"not enforced in the schema: {', '.join(event.unbound)}")
            changed[choice.index] = choice
        for choice in changed.values():
            if choice.error is not None:
                raise to_problem(choice.error)
            if choice.finished is not None and choice.finished.reason == "cancelled":
                raise self._cancel_reason or Problem(503, "the answer was cut off", code="cancelled")
        return list(changed.values())


def drop_messages(request: AnyRequest) -> AnyRequest:
    """Drop the messages of a request: they may hold large images, and are not needed once it is submitted."""
    return request if isinstance(request, EmbedRequest) else replace(request, messages=())


def too_long(limit_s: float) -> Problem:
    return Problem(504, f"the answer took longer than {limit_s:g} s", "timeout_error", code="timeout")


def hash_system_prompt(request: AnyRequest) -> str:
    if not isinstance(request, ChatRequest):
        return ""
    return hash_text("\n".join(message.content for message in request.messages if message.role == "system"))


def hash_text(text: str) -> str:
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).hexdigest() if text else ""


# ---- event stream
class EventStream:
    """Carries the events of one call's requests from a client's threads to an asyncio task, in order of arrival.

    requests  emptied once they are submitted: the engine has them, and they may contain large images
    """

    def __init__(self, client: ClientThread, requests: list[AnyRequest]) -> None:
        self._client, self._requests = client, requests
        self._loop = asyncio.get_running_loop()
        self._arrived: deque[tuple[RequestEvent, float]] = deque()
        self._has_arrived = asyncio.Event()
        self._awaits_end = False
        self._unfinished = {request.id for request in requests}

    @property
    def is_over(self) -> bool:
        return not self._unfinished and not self._arrived

    def submit(self) -> None:
        for request in self._requests:
            self._client.submit(request, self.on_event)
        self._requests.clear()

    def on_event(self, event: RequestEvent) -> None:
        """Take an event; called on a thread of the client."""
        self._arrived.append((event, time.perf_counter()))
        if self._awaits_end and not isinstance(event, Finished | Failed):
            return  # waking the event loop for each token would take a core from the decoding
        with contextlib.suppress(RuntimeError):  # the event loop has ended, and all readers with it
            self._loop.call_soon_threadsafe(self._has_arrived.set)

    async def next(self, timeout_s: float, *, until_end: bool = False) -> list[tuple[RequestEvent, float]]:
        """Return the events that have arrived, waiting for at least one; empty on timeout or after the last event.

        Each comes with the time of its arrival (time.perf_counter). `until_end`: wait until an answer has ended.
        """
        self._awaits_end = until_end
        self._has_arrived.clear()
        awaited = Finished | Failed if until_end else object
        if not (self.is_over or any(isinstance(event, awaited) for event, _ in list(self._arrived))):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):  # asyncio.wait_for of 3.11 may lose a cancel at an event
                    await self._has_arrived.wait()
        events = [self._arrived.popleft() for _ in range(len(self._arrived))]
        self._unfinished -= {event.request_id for event, _ in events if isinstance(event, Finished | Failed)}
        return events

    def cancel(self) -> None:
        for request_id in self._unfinished:
            self._client.cancel(request_id)
