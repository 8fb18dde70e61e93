"""A model that is loaded and who uses it; one that is on its way, and who waits for it.

Who uses a model keeps it loaded. A load goes on when all who waited have given up: it cannot be called back.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass, field

from eaglelocal.core.events import EngineInfo
from eaglelocal.server.asking import Answerer, Line

RETRY_FAILED_S = 30.0


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model that can answer."""

    name: str
    line: Line
    info: EngineInfo

    @property
    def client(self) -> Answerer:
        return self.line.client


@dataclass(frozen=True, slots=True)
class Opened:
    """What a loader gives back."""

    client: Answerer
    info: EngineInfo


async def aside(work: Callable[[], Opened]) -> Opened:
    """What blocks, on a thread that the end of the process does not wait for, as it would for asyncio's own."""
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
class Resident:
    """A loaded model and who uses it. Times are of a monotonic clock."""

    loaded: Loaded
    num_users: int = 0
    used_at: float = field(default_factory=time.monotonic)
    failed_at: float | None = None  # its engine was given up
    is_leaving: bool = False  # somebody waits for its place
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
        """An engine that was given up is started anew for a request that comes a while later."""
        self.note_failure()
        return self.failed_at is not None and time.monotonic() - self.failed_at >= RETRY_FAILED_S

    @property
    def spared(self) -> tuple[bool, bool, float]:
        """Orders models by how well one can do without them: what cannot answer, what nobody uses, and has not for
        longest."""
        return self.loaded.client.state != "failed", self.num_users > 0, self.used_at


class Awaited:
    """A model on its way, and who waits for it. Whoever gives up is forgotten; a load goes on all the same: it cannot
    be called back, and its engine must not be lost."""

    def __init__(self, work: Callable[[Awaited], Coroutine[None, None, None]]) -> None:
        self.is_loading = False
        self._waiting: set[asyncio.Future[Resident]] = set()
        self._task = asyncio.create_task(work(self))

    @property
    def is_wanted(self) -> bool:
        return self.is_loading or bool(self._waiting)

    async def wait(self) -> Resident:
        """The model, with one user more. Raises what kept it from coming."""
        place: asyncio.Future[Resident] = asyncio.get_running_loop().create_future()
        self._waiting.add(place)
        try:
            return await place
        except asyncio.CancelledError:
            if not place.cancelled() and place.exception() is None:  # it came at the same moment
                place.result().leave()
            raise
        finally:
            self._waiting.discard(place)

    def give(self, resident: Resident) -> None:
        for place in self._places():
            resident.enter()
            place.set_result(resident)

    def refuse(self, error: Exception) -> None:
        for place in self._places():
            place.set_exception(error)

    def give_up(self) -> None:
        self._task.cancel()

    def _places(self) -> list[asyncio.Future[Resident]]:
        return [place for place in self._waiting if not place.done()]
