"""A loaded model with its users (Resident), and a model being loaded with its waiting requests (Awaited).

A request keeps its model loaded. A load continues when all waiting requests have gone: it cannot be cancelled.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass, field

from eaglelocal.core.events import EngineInfo
from eaglelocal.server.event_stream import Answerer, ClientThread

RETRY_FAILED_S = 30.0


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model that can answer."""

    name: str
    line: ClientThread
    info: EngineInfo

    @property
    def client(self) -> Answerer:
        return self.line.client


@dataclass(frozen=True, slots=True)
class Opened:
    """The result of a loader."""

    client: Answerer
    info: EngineInfo


async def aside(work: Callable[[], Opened]) -> Opened:
    """Run a blocking load on a daemon thread: process exit would wait for asyncio's own threads."""
    outcome: Future[Opened] = Future()

    def run() -> None:
        outcome.set_running_or_notify_cancel()
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, name="loading", daemon=True).start()
    return await asyncio.wrap_future(outcome)


@dataclass(slots=True)
class LoadedModel:
    """A loaded model and the number of its users. Times are of a monotonic clock, in seconds."""

    loaded: Loaded
    num_users: int = 0
    used_at: float = field(default_factory=time.monotonic)
    failed_at: float | None = None  # when its engine failed for good
    is_leaving: bool = False  # another model waits for its place
    is_free: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.is_free.set()

    def enter(self) -> None:
        self.num_users += 1
        self.used_at = time.monotonic()
        self.is_free.clear()

    def leave(self) -> None:
        self.num_users -= 1
        self.used_at = time.monotonic()
        if not self.num_users:
            self.is_free.set()

    def note_failure(self) -> None:
        if self.loaded.client.state != "failed":
            self.failed_at = None
        elif self.failed_at is None:
            self.failed_at = time.monotonic()

    @property
    def is_worth_another_try(self) -> bool:
        """Return whether to start an engine that failed for good again: RETRY_FAILED_S later, when a request comes."""
        self.note_failure()
        return self.failed_at is not None and time.monotonic() - self.failed_at >= RETRY_FAILED_S

    @property
    def spared(self) -> tuple[bool, bool, float]:
        """Return a sort key, least needed first: models that cannot answer, then unused ones, by time of last use."""
        return self.loaded.client.state != "failed", self.num_users > 0, self.used_at


class LoadingModel:
    """A model to be loaded, and the requests that wait for it. A load in progress continues even if all of them are
    cancelled: it cannot be interrupted, and its engine must not be lost.
    """

    def __init__(self, work: Callable[[LoadingModel], Coroutine[None, None, None]]) -> None:
        self.is_loading = False
        self._waiting: set[asyncio.Future[LoadedModel]] = set()
        self._task = asyncio.create_task(work(self))

    @property
    def is_wanted(self) -> bool:
        return self.is_loading or bool(self._waiting)

    async def wait(self) -> LoadedModel:
        """Return the model, with its user count raised. Raises the error that prevented the load."""
        place: asyncio.Future[LoadedModel] = asyncio.get_running_loop().create_future()
        self._waiting.add(place)
        try:
            return await place
        except asyncio.CancelledError:
            if not place.cancelled() and place.exception() is None:  # it arrived at the same moment
                place.result().leave()
            raise
        finally:
            self._waiting.discard(place)

    def give(self, resident: LoadedModel) -> None:
        for place in self._places():
            resident.enter()
            place.set_result(resident)

    def refuse(self, error: Exception) -> None:
        for place in self._places():
            place.set_exception(error)

    def give_up(self) -> None:
        self._task.cancel()

    def _places(self) -> list[asyncio.Future[LoadedModel]]:
        return [place for place in self._waiting if not place.done()]
