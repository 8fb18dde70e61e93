"""An HTTP call in progress: the answers to its requests as their events arrive, its time limit, its cancellation."""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from statistics import fmean

from eaglelocal.core.events import EngineInfo, RequestEvent, Started
from eaglelocal.core.request import AnyRequest, ChatRequest, EmbedRequest
from eaglelocal.learning.drift import DriftWatch
from eaglelocal.learning.kept_answers import KINDS, guess_kind
from eaglelocal.server.answer_state import AnswerState
from eaglelocal.server.event_stream import EventStream
from eaglelocal.server.http_errors import RATE_LIMIT, Problem, to_problem
from eaglelocal.server.loaded_models import LoadedModel
from eaglelocal.server.request_record import current_record

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
    """Drop the messages of a request: they may hold large images, and are not needed once it is submitted."""
    return request if isinstance(request, EmbedRequest) else replace(request, messages=())


def too_long(limit_s: float) -> Problem:
    return Problem(504, f"the answer took longer than {limit_s:g} s", "timeout_error", code="timeout")


# ---- admission: limit the requests in the server at once, in total and for each owner. Pure counting
NUM_REMEMBERED = 32
MAX_RETRY_AFTER_S = 60


class OwnerPlaces:
    """Places that owners hold.

    is_shared  several keys: an owner may hold at most three quarters of what the others leave, so that each further
               owner still gets a place: of 68 places 51, then 12, then 4
    undivided     up to this many places are not divided among owners
    """

    def __init__(self, capacity: int, *, is_shared: bool, undivided: int = 1) -> None:
        self.capacity, self.is_shared, self._undivided = capacity, is_shared, undivided
        self._held: Counter[str] = Counter()

    @property
    def num_held(self) -> int:
        return self._held.total()

    def max_share(self, left: int) -> int:
        """Return how many places an owner may hold, of those that other owners leave."""
        return max(left * 3 // 4, min(self._undivided, left)) if self.is_shared else left

    @contextmanager
    def hold(self, owner: str, refuse: Callable[[int], Problem], count: int = 1) -> Iterator[None]:
        """Hold places while the block runs. If too few are free, raise the error that `refuse` makes from the number
        held.
        """
        num_held = self._held[owner]
        if num_held + count > self.max_share(self.capacity - (self.num_held - num_held)):
            raise refuse(num_held)
        self._held[owner] += count
        try:
            yield
        finally:
            self._held[owner] -= count
            if not self._held[owner]:
                del self._held[owner]


class AdmissionQueue:
    """A bounded number of places for requests that run or wait. The engine decides their order."""

    def __init__(self, *, num_slots: int, max_waiting: int, is_shared: bool) -> None:
        self.num_slots, self.max_waiting = num_slots, max_waiting
        self._places = OwnerPlaces(num_slots + max_waiting, is_shared=is_shared, undivided=num_slots)
        self._durations_s: deque[float] = deque(maxlen=NUM_REMEMBERED)

    @property
    def num_inside(self) -> int:
        return self._places.num_held

    @property
    def capacity(self) -> int:
        return self._places.capacity

    @property
    def share(self) -> int:
        """Return how many places an owner may hold while there are no other owners."""
        return self._places.max_share(self.capacity)

    def admit(self, owner: str, count: int = 1) -> AbstractContextManager[None]:
        """Hold places for `count` answers while the block runs.

        Raises Problem: 429 if too few are free, 400 if there never can be enough.
        """
        return self._places.hold(owner, partial(self._refusal, count), count)

    def record_duration(self, duration_s: float) -> None:
        """Record how long an answer took, for Retry-After."""
        self._durations_s.append(duration_s)

    def _refusal(self, count: int, num_held: int) -> Problem:
        """Return the Problem for `count` more answers of an owner who holds `num_held` places.

        It does not reveal how many requests others have; the time to wait shows how busy the server is.
        """
        if count > self.share:  # waiting would never help
            whose = f" of one key, of {self.capacity} in all," * self._places.is_shared
            what = f"{count} answers were requested, but only {self.share}{whose} may run or wait at once"
            return Problem(400, what, parameter="n")
        ahead = self.num_inside / self.num_slots * (fmean(self._durations_s) if self._durations_s else 1.0)
        wait_s = min(max(math.ceil(ahead / 2), 1), MAX_RETRY_AFTER_S)
        is_share_full = self._places.is_shared and self.num_inside + count <= self.capacity  # there is room, for others
        what = f"{'the share of this key' if is_share_full else 'the queue'} is full: "
        what += f"{'this key' if self._places.is_shared else 'it'} has {num_held} requests running or waiting"
        return Problem(
            429,
            f"{what}; try again in {wait_s} s",
            RATE_LIMIT,
            code="queue_full",
            headers={"Retry-After": str(wait_s)},
        )


# ---- request states: the states of requests in words, as monitors show them: waiting, reading, running, or how they
# ended
#
# Pure. The engine's first event for a request is Started, sent with the first rows of its prompt. Until then a request
# counts as waiting or as being prefilled, depending on the free slots: the engine gives all of them to requests at its
# next step.
WAITING, READING, RUNNING = "waiting", "reading", "running"
REFUSED, FAILED = "refused", "failed"


def name_state(choice: AnswerState) -> str:
    """Name the state of a single request; a request that has not begun is waiting."""
    if choice.finished is not None:
        return choice.finished.reason
    if choice.error is not None:
        return FAILED if choice.has_failed else REFUSED
    if choice.ended_at:
        return REFUSED if choice.is_refused else "gone"
    if choice.started is None:
        return WAITING
    return RUNNING if choice.num_tokens else READING


def name_active_states(
    active: Iterable[tuple[ActiveCall, AnswerState]], count_slots: Callable[[str], int]
) -> dict[str, str]:
    """Name the states of the active requests, by their ids.

    Among submitted requests that have not begun, the oldest count as reading, as many as their model has free slots.
    That may be wrong until the next step if several owners have requests: the engine may choose others.

    active       in order of arrival
    count_slots  returns the slots of a model; 0 while its engine does not run
    """
    requests = list(active)
    free = Counter({model: count_slots(model) for model in {call.model for call, _ in requests}})
    free.subtract(call.model for call, choice in requests if choice.started is not None and not choice.is_over)
    states = {}
    for call, choice in requests:
        state = name_state(choice)
        if state == WAITING and call.is_submitted and free[call.model] > 0:
            free[call.model] -= 1
            state = READING
        states[choice.request.id] = state
    return states


# ---- answer drift: passes answers to the watch over drifts: kind of text, acceptance, and the conditions that it
# depends on
#
# No text is kept, only a hash of the system prompt, to detect a change.
def watch_drift(watch: DriftWatch, info: EngineInfo, choice: AnswerState) -> None:
    """Add a complete answer to the drift watch; an answer without drafts is ignored."""
    request, finished = choice.request, choice.finished
    if finished is None or not finished.speculation.drafts or not isinstance(request, ChatRequest):
        return
    stats = finished.speculation
    accepted = next(iter(stats.accepted_per_position), 0)
    kind = KINDS[guess_kind(choice.opening, has_calls=choice.has_calls)]
    conditions = {  # conditions that acceptance depends on besides the kind of text, by the names shown to users
        "model file": info.weights,
        "draft": info.draft,
        "template": hash_text(info.template),
        "system prompt": choice.system_hash,
        "draft length": "" if request.spec is None else str(request.spec),
    }
    watch.add(info.target, kind, stats.drafts, accepted, conditions)


def hash_system_prompt(request: AnyRequest) -> str:
    if not isinstance(request, ChatRequest):
        return ""
    return hash_text("\n".join(message.content for message in request.messages if message.role == "system"))


def hash_text(text: str) -> str:
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).hexdigest() if text else ""
