"""An HTTP call in progress: the answers to its requests as their events arrive, its time limit, its cancellation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Sequence
from dataclasses import replace

from eaglelocal.core.events import RequestEvent, Started
from eaglelocal.core.request import AnyRequest, EmbedRequest
from eaglelocal.server.answer_drift import hash_system_prompt
from eaglelocal.server.answer_state import AnswerState
from eaglelocal.server.event_stream import EventStream
from eaglelocal.server.http_errors import Problem, to_problem
from eaglelocal.server.loaded_models import LoadedModel
from eaglelocal.server.request_record import current_record

PROGRESS_S = 0.25  # in which the state of an answer that is sent as a whole is brought up to date, for the monitor


class ActiveCall:
    """The answers to one HTTP call, from the wait for its model to their ends."""

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
        """Return the model once it is loaded. Raises Problem if it is not, or not in time, or if it is cancelled."""
        try:
            async with asyncio.timeout(self._limit_s) as self._model_timeout:
                return await model
        except TimeoutError:
            raise self._cancel_reason or too_long(self._limit_s) from None
        except Problem:
            for choice in self.choices:
                choice.refuse()
            raise
        finally:
            self._model_timeout = None

    def attach(self, events: EventStream) -> None:
        """Take the events of the submitted requests; cancel these if the call was cancelled before."""
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
            self._apply(await self._events.next_end(self._clip(PROGRESS_S)))
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
    """Return the request without its messages, which may hold large images and are not needed once it is submitted."""
    return request if isinstance(request, EmbedRequest) else replace(request, messages=())


def too_long(limit_s: float) -> Problem:
    return Problem(504, f"the answer took longer than {limit_s:g} s", "timeout_error", code="timeout")
