"""The state shared by all routes: models, admission, defaults, limits, metrics, and the calls in progress.

Created once, when the server starts. Knows nothing of HTTP except Problem.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import field

from eaglelocal.core.draft import describe_cut_length
from eaglelocal.core.model_task import ModelTask
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import AnyRequest, ChatRequest, EmbedRequest
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.core.stats import LEARNING_OFF, LearningStatus
from eaglelocal.learning.drift import DriftWatch
from eaglelocal.server.active_call import WAITING, ActiveCall, AdmissionQueue, name_active_states, watch_drift
from eaglelocal.server.answer_state import AnswerState
from eaglelocal.server.connections import MAX_CONNECTIONS
from eaglelocal.server.content import replace_unseen_images
from eaglelocal.server.event_stream import EventStream
from eaglelocal.server.http_errors import CANCELLED_STATUS, Problem
from eaglelocal.server.loaded_models import LoadedModel
from eaglelocal.server.metrics import Metrics
from eaglelocal.server.model_manager import ModelManager
from eaglelocal.server.request_record import GONE, RequestRecord, current_record
from eaglelocal.server.responses.stored_responses import StoredResponses

NUM_RECENT = 50
NO_FAULTS = frozenset((501, 503, 505))  # statuses of refused calls: not supported; loading, stopping or full
ENDED_BY_USERS = frozenset((CANCELLED_STATUS, GONE))


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
        """Reserve places and the model, and submit `requests` (emptied). Leaving the block cancels them. Raises
        Problem.
        """
        self._check_task(model, requests)
        async with (
            self.reserve(model, requests) as (call, loaded),
            EventStream(loaded.client_thread, requests) as events,
        ):
            call.attach(events)
            yield call

    @asynccontextmanager
    async def reserve(self, model: str, requests: list[AnyRequest]) -> AsyncIterator[tuple[ActiveCall, LoadedModel]]:
        """Reserve places and a loaded model for requests, without submitting them. Raises Problem.

        Images in `requests` are replaced by texts if the model reads none.
        """
        if self.is_draining:
            raise Problem(503, "the server is being stopped", code="draining", headers={"Connection": "close"})
        name = self.models.names.resolve(model)
        with self.admission.admit(requests[0].owner, len(requests)), self._open_call(name, requests) as call:
            async with contextlib.AsyncExitStack() as stack:

                async def acquire_model() -> LoadedModel:
                    loaded = await stack.enter_async_context(self.models.use(name))
                    warn_of_cut_length(requests, loaded)
                    requests[:] = replace_unseen_images(requests, loaded.info)
                    return loaded

                yield call, await call.wait_for_model(acquire_model())

    def _check_task(self, model: str, requests: Sequence[AnyRequest]) -> None:
        """Refuse a task that an unloaded model cannot do, before others are evicted for it. Raises Problem."""
        name = self.models.names.resolve(model)
        task = None if self.models.loaded_info(name) is not None else self.models.task(name)
        for request in requests:
            required = request.task if isinstance(request, EmbedRequest) else ModelTask.TEXT
            if task is not None and task is not required:
                raise Problem(
                    400, f"{name} {task.explain_mismatch(required)}", parameter="model", code="model_not_supported"
                )

    @contextlib.contextmanager
    def _open_call(self, model: str, requests: Sequence[AnyRequest]) -> Iterator[ActiveCall]:
        """List a call as active while the block runs, then record its answers."""
        call = ActiveCall(model, requests, self.limits.request_s)
        for choice in call.choices:
            choice.client = current_record().client
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
        info = self.models.loaded_info(model)
        if info is not None:
            watch_drift(self.drift, info, choice)
        now = time.perf_counter()
        choice.close(now)
        if choice.finished is not None:
            self.num_answered += 1
            self.admission.record_duration(now - choice.requested_at)

    def cut_off_answers(self) -> None:
        """Cancel every running answer, with a Problem for its client."""
        for call in {id(call): call for call, _ in self.active.values()}.values():
            call.cancel(Problem(503, "the answer was cut off: the server is being stopped", code="cancelled"))


def warn_of_cut_length(requests: Sequence[AnyRequest], loaded: LoadedModel) -> None:
    for request in requests[:1]:  # all requests of a call are alike
        if isinstance(request, ChatRequest) and request.spec is not None:
            cut = describe_cut_length(request.spec.num_draft_tokens, loaded.info.max_draft)
            current_record().warnings += [f"spec: {cut}"] if cut else []
