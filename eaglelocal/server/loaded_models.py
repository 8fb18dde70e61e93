"""The loaded models of a server: load one, unload one, and count who uses each.

Knows nothing of evictions and of waiting requests (model_manager.py). How to load a model is a function passed in.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import field
from functools import partial

from eaglelocal.core.adapters import AdapterFile, AdapterMix, apply_mix
from eaglelocal.core.events import EngineInfo
from eaglelocal.core.model_task import ModelTask
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import Spec
from eaglelocal.errors import EagleLocalError, EngineError
from eaglelocal.server.event_stream import ClientThread, RestartingClient
from eaglelocal.server.http_errors import describe_error

RETRY_FAILED_S = 30.0

_log = logging.getLogger("eaglelocal.server")


@dataclass(frozen=True, slots=True)
class LoadResult:
    """The result of a loader: the client of the new engine, and the engine's info."""

    client: RestartingClient
    info: EngineInfo


LoadModel = Callable[[str], LoadResult]  # takes a reference; blocks; raises EagleLocalError


@dataclass(slots=True, eq=False)
class LoadedModel:
    """A loaded model and the number of requests that use it. Times are of a monotonic clock, in seconds."""

    name: str
    client_thread: ClientThread
    info: EngineInfo
    num_users: int = 0
    used_at: float = field(default_factory=time.monotonic)
    failed_at: float | None = None  # when its engine failed for good
    is_unloading: bool = False  # it is, or will be once it is free: no request may acquire it
    is_free: asyncio.Event = field(default_factory=asyncio.Event)
    adapters: AdapterMix | None = None  # of requests that choose none, if it was set since the model was loaded

    def __post_init__(self) -> None:
        self.is_free.set()

    @property
    def client(self) -> RestartingClient:
        return self.client_thread.client

    @property
    def present_adapters(self) -> tuple[AdapterFile, ...]:
        """Return the LoRA adapters with the scales of requests that choose none."""
        return self.info.adapters if self.adapters is None else apply_mix(self.info.adapters, self.adapters)

    def set_adapters(self, mix: AdapterMix) -> None:
        """Set the LoRA adapters of later requests that choose none, until the model is unloaded."""
        self.adapters = mix
        self.client.set_adapters(mix)

    def acquire(self) -> None:
        self.num_users += 1
        self.used_at = time.monotonic()
        self.is_free.clear()

    def release(self) -> None:
        self.num_users -= 1
        self.used_at = time.monotonic()
        if not self.num_users:
            self.is_free.set()

    def begin_unloading(self) -> None:
        """Let no further request acquire it, so that it can be unloaded once it is free."""
        self.is_unloading = True

    def cancel_unloading(self) -> None:
        self.is_unloading = False

    def record_failure(self) -> None:
        """Remember since when the engine has failed for good, if it has."""
        if self.client.state != "failed":
            self.failed_at = None
        elif self.failed_at is None:
            self.failed_at = time.monotonic()

    @property
    def is_available(self) -> bool:
        """Return whether requests may use it: it stays, and its engine is not to be loaded anew."""
        return not (self.is_unloading or self.is_due_for_retry)

    @property
    def is_due_for_retry(self) -> bool:
        """Return whether the next request loads it anew: its engine failed for good at least RETRY_FAILED_S ago."""
        self.record_failure()
        return self.failed_at is not None and time.monotonic() - self.failed_at >= RETRY_FAILED_S

    def is_idle(self, idle_s: float) -> bool:
        """Return whether nobody has used it for `idle_s` seconds."""
        return not (self.num_users or self.is_unloading) and time.monotonic() - self.used_at >= idle_s

    @property
    def eviction_key(self) -> tuple[bool, bool, float]:
        """Return a sort key, least needed first: models that cannot answer, then unused ones, by time of last use."""
        return self.client.state != "failed", self.num_users > 0, self.used_at


class LoadedModels:
    """The loaded models, in the order of loading, and what is known of earlier ones."""

    def __init__(self, load: LoadModel, before_unload: Callable[[], None]) -> None:
        """`before_unload` is called before an engine is closed, to read its totals; it may block."""
        self._load, self._before_unload = load, before_unload
        self._by_name: dict[str, LoadedModel] = {}
        self._spec: Spec | None = None  # how to draft, also for models loaded later; None: as planned
        self._is_closed = False
        self.loading = ""  # name of the model that is being loaded
        self.failure = ""  # why the last load failed
        self.infos: dict[str, EngineInfo] = {}  # of models loaded now or earlier

    def all(self) -> tuple[LoadedModel, ...]:
        """Return the loaded models. Safe from any thread."""
        return tuple(self._by_name.values())

    def find(self, name: str) -> LoadedModel | None:
        return self._by_name.get(name)

    @property
    def least_needed_first(self) -> list[LoadedModel]:
        return sorted(self.all(), key=lambda model: model.eviction_key)

    @property
    def current(self) -> LoadedModel | None:
        """Return the model for a monitor to show: preferably a text model with a working engine, used most recently."""
        return max(self.all(), key=lambda model: (model.info.task is ModelTask.TEXT, *model.eviction_key), default=None)

    async def load(self, name: str, reference: str) -> LoadedModel:
        """Load a model. Raises EagleLocalError."""
        if self._is_closed:
            raise EngineError("the server is being stopped")
        self.loading = name
        try:
            result = await run_on_daemon_thread(partial(self._load, reference))
        except EagleLocalError as error:
            self.failure = describe_error(error)
            raise
        except Exception as error:  # any error: it must be reported, and the evicted models loaded again
            _log.error("a load failed", exc_info=error)
            unexpected = EngineError(
                f"{type(error).__name__}: {error}", hint="this is a bug: please report it with the log"
            )
            self.failure = describe_error(unexpected)
            raise unexpected from error
        finally:
            self.loading = ""
        self.failure = ""
        if self._spec is not None:
            result.client.set_spec(self._spec)
        model = self._by_name[name] = LoadedModel(name, ClientThread(result.client), result.info)
        self.infos[name] = result.info
        if self._is_closed:  # closed during the load
            await self.unload(model)
        return model

    async def unload(self, model: LoadedModel) -> None:
        """Close the engine of a model; unfinished answers fail."""
        model.begin_unloading()
        await asyncio.to_thread(self._before_unload)
        self._by_name.pop(model.name, None)  # close() may have removed it by now
        await asyncio.to_thread(model.client_thread.close)

    async def set_spec(self, spec: Spec) -> None:
        """Set how all models draft for requests that do not say it themselves, also models that are loaded later."""
        self._spec = spec
        for model in self.all():
            await asyncio.to_thread(model.client.set_spec, spec)

    async def close(self) -> None:
        """Unload all models; a load in progress ends without its model."""
        self._is_closed = True
        await asyncio.gather(*map(self.unload, self.all()))


async def run_on_daemon_thread(load: Callable[[], LoadResult]) -> LoadResult:
    """Run a blocking load on a daemon thread: at exit Python would wait for asyncio's own threads."""
    outcome: Future[LoadResult] = Future()

    def run() -> None:
        outcome.set_running_or_notify_cancel()
        try:
            outcome.set_result(load())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, name="loading", daemon=True).start()
    return await asyncio.wrap_future(outcome)
