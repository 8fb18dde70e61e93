"""The state shared by all routes: models, admission, defaults, limits, metrics; turns a call into events.

Created once, when the server starts. Knows nothing of HTTP except Problem.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from eaglelocal.core.model_task import ModelTask
from eaglelocal.core.request import AnyRequest, EmbedRequest
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.server.admission import AdmissionQueue
from eaglelocal.server.answer_state import AnswerState
from eaglelocal.server.event_stream import EventStream
from eaglelocal.server.http_errors import Problem, problem_of
from eaglelocal.server.image_fallback import as_seen
from eaglelocal.server.loaded_models import Loaded
from eaglelocal.server.metrics import Metrics
from eaglelocal.server.model_manager import ModelManager

NUM_RECENT = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """Time limits in seconds, and the length of the queue."""

    max_waiting: int = 64
    request_s: float = 3600.0  # from the request to the end of its answer
    linger_s: float = 30.0  # extra time for a caller that reads slowly
    ping_s: float = 15.0  # interval of pings in an idle stream, so that no proxy closes it
    patience_s: float = 5.0  # wait for the first event before a stream starts empty; most errors come earlier


@dataclass(slots=True)
class ServerState:
    """The server behind its routes."""

    models: ModelManager
    admission: AdmissionQueue
    metrics: Metrics
    defaults: SamplingParams = field(default_factory=SamplingParams)
    limits: ServerLimits = field(default_factory=ServerLimits)
    started_at: float = field(default_factory=time.time)
    is_draining: bool = False
    active: dict[str, tuple[Call, AnswerState]] = field(default_factory=dict)  # by request id
    recent: deque[tuple[str, AnswerState]] = field(
        default_factory=lambda: deque(maxlen=NUM_RECENT)
    )  # with their models
    num_answered: int = 0

    @property
    def state(self) -> str:
        return "draining" if self.is_draining else self.models.state

    @asynccontextmanager
    async def ask(self, model: str, requests: list[AnyRequest]) -> AsyncIterator[Call]:
        """Get places and the model, and submit `requests` (emptied). Leaving the block cancels them. Raises Problem."""
        self._check_task(model, requests)
        async with self.hold(model, requests) as (call, loaded), EventStream(loaded.line, requests) as asking:
            call.begin(asking)
            yield call

    @asynccontextmanager
    async def hold(self, model: str, requests: list[AnyRequest]) -> AsyncIterator[tuple[Call, Loaded]]:
        """Hold places and a loaded model for requests that are not submitted; `requests` is adapted by as_seen.

        Raises Problem.
        """
        if self.is_draining:
            raise Problem(503, "the server is being stopped", code="draining", headers={"Connection": "close"})
        name, owner = self.models.name_of(model), requests[0].owner
        with self.admission.place(owner, len(requests)), contextlib.closing(Call(self, name, requests)) as call:
            async with contextlib.AsyncExitStack() as left:
                yield call, await self._enter(call, requests, left)

    def _check_task(self, model: str, requests: Sequence[AnyRequest]) -> None:
        """Refuse a task that an unloaded model cannot do, before others are unloaded for it. Raises Problem."""
        name = self.models.name_of(model)
        task = None if self.models.info_of(name) is not None else self.models.task(name)
        for request in requests:
            wanted = request.task if isinstance(request, EmbedRequest) else ModelTask.TEXT
            if task is not None and task is not wanted:
                raise Problem(
                    400, f"{name} {task.explain_mismatch(wanted)}", parameter="model", code="model_not_supported"
                )

    async def _enter(self, call: Call, requests: list[AnyRequest], left: contextlib.AsyncExitStack) -> Loaded:
        """Wait for the model, for at most `limits.request_s`. Raises Problem."""
        try:
            async with asyncio.timeout(self.limits.request_s) as call.waits:
                loaded = await left.enter_async_context(self.models.use(call.model))
            requests[:] = as_seen(requests, loaded.info)
            return loaded
        except TimeoutError:
            raise call.why_cancelled or too_long(self.limits.request_s) from None
        except Problem:
            call.refuse()
            raise
        finally:
            call.waits = None

    def cut_off(self) -> None:
        """Cancel every running answer, with a Problem for its caller."""
        for call in {id(call): call for call, _ in self.active.values()}.values():
            call.cancel(Problem(503, "the answer was cut off: the server is being stopped", code="cancelled"))


class Call:
    """The answers to one HTTP call, as they arrive."""

    def __init__(self, serving: ServerState, model: str, requests: Sequence[AnyRequest]) -> None:
        asked_at = time.perf_counter()
        self.model = model
        self.choices = [AnswerState(i, without_messages(request), asked_at) for i, request in enumerate(requests)]
        self._serving = serving
        self._asking: EventStream | None = None
        self.waits: asyncio.Timeout | None = None  # while it waits for its model
        self.why_cancelled: Problem | None = None
        self._by_id = {choice.request.id: choice for choice in self.choices}
        self._ends_at = asked_at + serving.limits.request_s
        serving.active |= {choice.request.id: (self, choice) for choice in self.choices}

    def begin(self, asking: EventStream) -> None:
        """Attach the submitted requests; cancel them if the call was cancelled meanwhile."""
        self._asking = asking
        if self.why_cancelled is not None:
            asking.cancel()

    def cancel(self, why: Problem) -> None:
        """Cancel the call; its caller gets `why`."""
        self.why_cancelled = self.why_cancelled or why
        if self._asking is not None:
            self._asking.cancel()
        elif self.waits is not None:
            self.waits.reschedule(asyncio.get_running_loop().time())

    def refuse(self) -> None:
        """Mark all choices as refused: the call got no model."""
        for choice in self.choices:
            choice.is_refused = True

    @property
    def is_over(self) -> bool:
        return all(choice.is_over for choice in self.choices)

    async def next(self, timeout_s: float) -> list[AnswerState]:
        """Return the choices with news, none on timeout. Raises Problem when one failed or exceeds the time limit."""
        assert self._asking is not None
        now = time.perf_counter()
        if now >= self._ends_at:
            raise too_long(self._serving.limits.request_s)
        events = await self._asking.next(min(timeout_s, self._ends_at - now))
        now = time.perf_counter()
        touched = {}
        for event in events:
            choice = self._by_id[event.request_id]
            choice.take(event, now)
            touched[choice.index] = choice
        for choice in touched.values():
            if choice.error is not None:
                raise problem_of(choice.error)
            if choice.finished is not None and choice.finished.reason == "cancelled":
                raise self.why_cancelled or Problem(503, "the answer was cut off", code="cancelled")
        return list(touched.values())

    async def complete(self) -> list[AnswerState]:
        """Return all choices once all are complete. Raises Problem."""
        while not self.is_over:
            await self.next(self._serving.limits.request_s)
        return self.choices

    def close(self) -> None:
        for choice in self.choices:
            serving = self._serving
            del serving.active[choice.request.id]
            if choice.is_counted:
                continue
            serving.recent.append((self.model, choice))
            serving.metrics.ended(choice)
            choice.forget()
            choice.ended_at = choice.ended_at or time.perf_counter()
            if choice.finished is not None:
                serving.num_answered += 1
                serving.admission.took(time.perf_counter() - choice.asked_at)


def without_messages(request: AnyRequest) -> AnyRequest:
    """Return the request without its messages, which may hold large images and are not needed once it is submitted."""
    return request if isinstance(request, EmbedRequest) else replace(request, messages=())


def too_long(limit_s: float) -> Problem:
    return Problem(504, f"the answer took longer than {limit_s:g} s", "timeout_error", code="timeout")
