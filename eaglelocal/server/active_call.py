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
    """The answers to one HTTP call, from waiting for its model until all have ended.

    Their events come from threads of the model's client, and are applied by one asyncio task, in order of arrival.
    """

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
        self._loop = asyncio.get_running_loop()
        self._model_timeout: asyncio.Timeout | None = None  # while it waits for its model
        self._client: ClientThread | None = None  # once the requests are submitted
        self._cancel_reason: Problem | None = None
        self._arrived: deque[tuple[RequestEvent, float]] = deque()
        self._has_arrived = asyncio.Event()
        self._awaits_end = False

    @property
    def is_submitted(self) -> bool:
        """Return whether the engine has the requests; False while the call waits for its model."""
        return self._client is not None

    @property
    def is_over(self) -> bool:
        return all(choice.is_over for choice in self.choices)

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

    def submit(self, client: ClientThread, requests: list[AnyRequest]) -> None:
        """Submit the requests, and empty the list: the engine has them now, and they may contain large images."""
        self._client = client
        for request in requests:
            client.submit(request, self.on_event)
        requests.clear()
        if self._cancel_reason is not None:
            self.cancel_unfinished()

    def cancel(self, reason: Problem) -> None:
        """Cancel the call; its client gets `reason`."""
        self._cancel_reason = self._cancel_reason or reason
        self.cancel_unfinished()
        if self._model_timeout is not None:
            self._model_timeout.reschedule(asyncio.get_running_loop().time())

    def cancel_unfinished(self) -> None:
        """Cancel the requests that still run."""
        for choice in self.choices:
            if self._client is not None and not choice.is_over:
                self._client.cancel(choice.request.id)

    def on_event(self, event: RequestEvent) -> None:
        """Take an event; called on a thread of the client."""
        self._arrived.append((event, time.perf_counter()))
        if self._awaits_end and not isinstance(event, Finished | Failed):
            return  # waking the event loop for each token would take a core from the decoding
        with contextlib.suppress(RuntimeError):  # the event loop has ended, and all readers with it
            self._loop.call_soon_threadsafe(self._has_arrived.set)

    async def next(self, timeout_s: float, *, until_end: bool = False) -> list[AnswerState]:
        """Return the choices with new events, waiting for at least one event; none on timeout or after the last event.

        `until_end`: wait until an answer has ended. Raises Problem when a request failed or the limit is over.
        """
        left_s = self._ends_at - time.perf_counter()
        if left_s <= 0:
            raise too_long(self._limit_s)
        self._awaits_end = until_end
        self._has_arrived.clear()
        awaited = Finished | Failed if until_end else object
        if not (self.is_over or any(isinstance(event, awaited) for event, _ in list(self._arrived))):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(timeout_s, left_s)):  # wait_for of 3.11 may lose a cancel at an event
                    await self._has_arrived.wait()
        return self._apply([self._arrived.popleft() for _ in range(len(self._arrived))])

    async def complete(self) -> list[AnswerState]:
        """Return all choices once all are complete. Raises Problem."""
        while not self.is_over:
            await self.next(PROGRESS_S, until_end=True)
        return self.choices

    def _apply(self, events: Sequence[tuple[RequestEvent, float]]) -> list[AnswerState]:
        """Update the choices and return the changed ones. Raises Problem when one failed."""
        changed = {}
        for event, arrived_at in events:
            choice = self._by_id[event.request_id]
            choice.apply(event, arrived_at)
            if isinstance(event, Started) and event.unbound:
                current_record().warn(f"not enforced in the schema: {', '.join(event.unbound)}")
            if isinstance(event, Finished) and event.is_loop:
                current_record().warn("the answer repeated itself and was stopped (--stop-loops)")
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
