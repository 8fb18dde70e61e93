"""The state shared by all routes: models, admission, defaults, limits, metrics, and the calls in progress.

Created once, when the server starts. Knows nothing of HTTP except Problem.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import field
from statistics import fmean

from eaglelocal.core.draft import describe_cut_length
from eaglelocal.core.events import EngineInfo
from eaglelocal.core.model_task import ModelTask
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import AnyRequest, ChatRequest, EmbedRequest
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.core.stats import LEARNING_OFF, LearningStatus
from eaglelocal.learning.drift import DriftWatch
from eaglelocal.learning.kept_answers import KINDS, guess_kind
from eaglelocal.server.access_log import GONE, RequestRecord, current_record
from eaglelocal.server.active_call import ActiveCall, hash_text
from eaglelocal.server.answer_state import READING, WAITING, AnswerState, ServedClient
from eaglelocal.server.connections import MAX_CONNECTIONS
from eaglelocal.server.content import replace_unseen_images
from eaglelocal.server.http_errors import CANCELLED_STATUS, RATE_LIMIT, Problem
from eaglelocal.server.loaded_models import LoadedModel
from eaglelocal.server.metrics import Metrics
from eaglelocal.server.model_manager import ModelManager
from eaglelocal.server.responses.stored_responses import StoredResponses

NUM_RECENT = 50
NO_FAULTS = frozenset((501, 503, 505))  # statuses of refused calls: not supported; loading, stopping or full
ENDED_BY_USERS = frozenset((CANCELLED_STATUS, GONE))


NUM_REMEMBERED = 32  # durations of answers
MAX_RETRY_AFTER_S = 60


# ---- admission: limit the requests in the server at once, in total and for each owner. Pure counting
class OwnerPlaces(ABC):
    """Places that owners hold.

    is_shared  several keys: an owner may hold at most three quarters of what the others leave, so that each further
               owner still gets a place: of 68 places 51, then 12, then 4
    undivided  up to this many places are not divided among owners
    """

    def __init__(self, capacity: int, *, is_shared: bool, undivided: int = 1) -> None:
        self.capacity, self.is_shared, self._undivided = capacity, is_shared, undivided
        self._held: Counter[str] = Counter()

    @property
    def num_held(self) -> int:
        return self._held.total()

    @contextmanager
    def admit(self, owner: str, count: int = 1) -> Iterator[None]:
        """Hold places while the block runs. Raises Problem if too few are free."""
        num_held = self._held[owner]
        if num_held + count > self._max_share(self.capacity - (self.num_held - num_held)):
            raise self._refusal(count, num_held)
        self._held[owner] += count
        try:
            yield
        finally:
            self._held[owner] -= count
            if not self._held[owner]:
                del self._held[owner]

    def _max_share(self, left: int) -> int:
        """Return how many places an owner may hold, of those that other owners leave."""
        return max(left * 3 // 4, min(self._undivided, left)) if self.is_shared else left

    @abstractmethod
    def _refusal(self, count: int, num_held: int) -> Problem:
        """Return the Problem for `count` more places of an owner who holds `num_held`."""


class AdmissionQueue(OwnerPlaces):
    """A bounded number of places for requests that run or wait. The engine decides their order.

    If too few places are free, the Problem is 429; if there never can be enough, 400.
    """

    def __init__(self, *, num_slots: int, max_waiting: int, is_shared: bool) -> None:
        super().__init__(num_slots + max_waiting, is_shared=is_shared, undivided=num_slots)
        self._num_slots = num_slots
        self._durations_s: deque[float] = deque(maxlen=NUM_REMEMBERED)

    @property
    def share(self) -> int:
        """Return how many places an owner may hold while there are no other owners."""
        return self._max_share(self.capacity)

    def record_duration(self, duration_s: float) -> None:
        """Record how long an answer took, for Retry-After."""
        self._durations_s.append(duration_s)

    def _refusal(self, count: int, num_held: int) -> Problem:
        """Return the Problem. It hides how many requests others have, but the time to wait shows how busy it is."""
        if count > self.share:  # waiting would never help
            whose = f" of one key, of {self.capacity} in all," * self.is_shared
            what = f"{count} answers were requested, but only {self.share}{whose} may run or wait at once"
            return Problem(400, what, parameter="n")
        ahead = self.num_held / self._num_slots * (fmean(self._durations_s) if self._durations_s else 1.0)
        wait_s = min(max(math.ceil(ahead / 2), 1), MAX_RETRY_AFTER_S)
        is_share_full = self.is_shared and self.num_held + count <= self.capacity  # there is room, for others
        what = f"{'the share of this key' if is_share_full else 'the queue'} is full: "
        what += f"{'this key' if self.is_shared else 'it'} has {num_held} requests running or waiting"
        headers = {"Retry-After": str(wait_s)}
        return Problem(429, f"{what}; try again in {wait_s} s", RATE_LIMIT, code="queue_full", headers=headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """Time limits in seconds, the length of the queue, and the number of connections."""

    max_waiting: int = 64
    num_connections: int = MAX_CONNECTIONS
    request_s: float = 3600.0  # from the request to the end of its answer
    linger_s: float = 30.0  # extra time for a client that reads slowly
    ping_s: float = 15.0  # interval of pings in an idle stream, so that no proxy closes it
    first_event_s: float = 5.0  # wait for the first event before a stream starts empty; most errors come earlier


@dataclass(slots=True)
class ServerState:
    """The state of a server, shared by its routes."""

    models: ModelManager
    admission: AdmissionQueue
    metrics: Metrics
    defaults: SamplingParams = field(default_factory=SamplingParams)
    limits: ServerLimits = field(default_factory=ServerLimits)
    started_at: float = field(default_factory=time.time)
    is_draining: bool = False  # new requests are refused
    active: dict[str, tuple[ActiveCall, AnswerState]] = field(default_factory=dict)  # by request id
    recent: deque[tuple[str, AnswerState]] = field(  # ended answers with their models
        default_factory=lambda: deque(maxlen=NUM_RECENT)
    )
    num_answered: int = 0
    num_refused: int = 0  # refused calls: unanswerable, or sent at a bad moment (see count_call)
    num_failed: int = 0  # calls that failed here
    drift: DriftWatch = field(default_factory=DriftWatch)
    read_learning: Callable[[], LearningStatus] = lambda: LEARNING_OFF
    event_streams: Counter[str] = field(default_factory=Counter)  # open ones of /v1/events, by owner
    stored: defaultdict[str, StoredResponses] = field(default_factory=lambda: defaultdict(StoredResponses))  # by owner

    @property
    def state(self) -> str:
        return "draining" if self.is_draining else self.models.state

    def name_active_states(self) -> dict[str, str]:
        """Return the states of the active requests by their ids. Safe from any thread."""
        return name_active_states(list(self.active.values()), self._count_slots)

    def count_active(self) -> tuple[int, int]:
        """Return how many requests run or are being prefilled, and how many wait. Safe from any thread."""
        states = list(self.name_active_states().values())
        num_waiting = states.count(WAITING)
        return len(states) - num_waiting, num_waiting

    def _count_slots(self, model: str) -> int:
        loaded = self.models.loaded_model(model)
        return loaded.info.num_slots if loaded is not None and loaded.client.state == "ready" else 0

    def count_call(self, record: RequestRecord, status: int) -> None:
        """Count an unanswered call: as failed if the server is at fault, else as refused."""
        in_stream = record.problem.status if record.problem is not None and status < 400 else 0
        is_fault = status >= 500 and status not in NO_FAULTS
        if record.has_failed or is_fault or in_stream >= 500:  # an answer that began is not refused
            self.num_failed += 1
        elif status >= 400 and status not in ENDED_BY_USERS:
            self.num_refused += 1

    @asynccontextmanager
    async def submit(self, model: str, requests: list[AnyRequest]) -> AsyncIterator[ActiveCall]:
        """Reserve places and the model, and submit `requests` (emptied); cancel them on leaving. Raises Problem."""
        self._check_task(model, requests[0])  # all requests of a call are alike
        async with self.reserve(model, requests) as (call, loaded):
            try:
                call.submit(loaded.client_thread, requests)
                yield call
            finally:
                call.cancel_unfinished()

    @asynccontextmanager
    async def reserve(self, model: str, requests: list[AnyRequest]) -> AsyncIterator[tuple[ActiveCall, LoadedModel]]:
        """Reserve places and a loaded model for requests, without submitting them. Raises Problem.

        Images in `requests` are replaced by texts if the model reads none.
        """
        if self.is_draining:
            raise Problem(503, "the server is being stopped", code="draining", headers={"Connection": "close"})
        name = self.models.names.resolve(model)
        with self.admission.admit(requests[0].owner, len(requests)), self._open_call(name, requests) as call:
            async with AsyncExitStack() as stack:

                async def acquire_model() -> LoadedModel:
                    loaded = await stack.enter_async_context(self.models.use(name))
                    warn_of_cut_length(requests[0], loaded)
                    requests[:] = replace_unseen_images(requests, loaded.info)
                    return loaded

                yield call, await call.wait_for_model(acquire_model())

    def _check_task(self, model: str, request: AnyRequest) -> None:
        """Refuse a task that an unloaded model cannot do, before others are evicted for it. Raises Problem."""
        name = self.models.names.resolve(model)
        task = None if self.models.loaded_info(name) is not None else self.models.task(name)
        required = request.task if isinstance(request, EmbedRequest) else ModelTask.TEXT
        if task not in (None, required):
            what = f"{name} {task.explain_mismatch(required)}"
            raise Problem(400, what, parameter="model", code="model_not_supported")

    @contextmanager
    def _open_call(self, model: str, requests: Sequence[AnyRequest]) -> Iterator[ActiveCall]:
        """List a call as active while the block runs, then record its answers."""
        call = ActiveCall(model, requests, self.limits.request_s)
        listed = [choice for _, choice in (*self.recent, *self.active.values())]
        client = number_client(current_record().client, listed)
        for choice in call.choices:
            choice.client = client
        self.active |= {choice.request.id: (call, choice) for choice in call.choices}
        try:
            yield call
        finally:
            for choice in call.choices:
                del self.active[choice.request.id]
                if not choice.is_counted:
                    self._record(model, choice)

    def _record(self, model: str, choice: AnswerState) -> None:
        self.recent.append((model, choice))
        current_record().add_answer(model, choice)
        self.metrics.record_answer(choice)
        if (info := self.models.loaded_info(model)) is not None:
            watch_drift(self.drift, info, choice)
        now = time.perf_counter()
        choice.close(now)
        if choice.finished is not None:
            self.num_answered += 1
            self.admission.record_duration(now - choice.requested_at)

    def cut_off_answers(self) -> None:
        """Cancel every running answer, with a Problem for its client."""
        for call in {call for call, _ in self.active.values()}:
            call.cancel(Problem(503, "the answer was cut off: the server is being stopped", code="cancelled"))


def warn_of_cut_length(request: AnyRequest, loaded: LoadedModel) -> None:
    if isinstance(request, ChatRequest) and request.spec is not None:
        cut = describe_cut_length(request.spec.num_draft_tokens, loaded.info.max_draft)
        current_record().warnings += [f"spec: {cut}"] if cut else []


def number_client(client: ServedClient, listed: Sequence[AnswerState]) -> ServedClient:
    """Return the client with a number: of one name, those that have requests at the same time have different ones.

    A connection keeps its number. Without that, or if another has it now, the smallest free one is chosen.

    listed  answers, the newest last; those that run are not over
    """
    namesakes = [answer for answer in listed if answer.client.name == client.name]
    own = [answer.client.number for answer in namesakes if answer.client.connection == client.connection]
    taken = {
        each.client.number for each in namesakes if each.client.connection != client.connection and not each.ended_at
    }
    free = (number for number in (*own[-1:], *range(1, len(taken) + 2)) if number not in taken)
    return client._replace(number=next(free))


def name_active_states(
    active: Iterable[tuple[ActiveCall, AnswerState]], count_slots: Callable[[str], int]
) -> dict[str, str]:
    """Name the states of the active requests, by their ids.

    The engine's first event for a request is Started, sent with the first rows of its prompt. Among submitted requests
    that have not begun, the oldest count as reading, as many as their model has free slots. That may be wrong until the
    next step if several owners have requests: the engine may choose others.

    active       in order of arrival
    count_slots  returns the slots of a model; 0 while its engine does not run
    """
    requests = list(active)
    free = Counter({model: count_slots(model) for model in {call.model for call, _ in requests}})
    free.subtract(call.model for call, choice in requests if choice.started is not None and not choice.is_over)
    states = {}
    for call, choice in requests:
        state = choice.state
        if state == WAITING and call.is_submitted and free[call.model] > 0:
            free[call.model] -= 1
            state = READING
        states[choice.request.id] = state
    return states


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
