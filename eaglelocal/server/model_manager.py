"""Manage the models that requests may name: load them on request, evict others when memory is short, unload idle ones.

A request keeps its model loaded; a model to be evicted is unloaded once it is free, and later requests for it wait
until it is loaded again. Models load one at a time, in the order of their first waiting request, so that none
starves; all requests that wait for a model get it when it is loaded. Loaded models keep answering meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from functools import partial

from eaglelocal.core.events import EngineInfo
from eaglelocal.core.model_task import ModelTask
from eaglelocal.core.plan import Plan
from eaglelocal.core.request import Spec
from eaglelocal.errors import EagleLocalError, EngineError, ResourceError
from eaglelocal.server.http_errors import SEE_LOG, Problem, describe_error, unavailable
from eaglelocal.server.loaded_models import RETRY_FAILED_S, ClientThread, LoadedModel, LoadModel, LoadResult, ModelNames
from eaglelocal.text.reasoning.model_families import TemplateFeatures, read_template_features

_log = logging.getLogger("eaglelocal.server")

FindPlan = Callable[[str], Plan | None]  # of a reference; None: not known yet
# takes the reference to load and the loaded ones, least needed first; returns those to unload
ChooseVictims = Callable[[str, Sequence[str]], Sequence[str]]


def evict_all(reference: str, others: Sequence[str]) -> Sequence[str]:
    """Return all others, so that only one model is loaded at a time."""
    return others


class ModelManager:
    """The models of a server; the first one is loaded at the start. `loaded`: in the order of loading."""

    def __init__(
        self,
        references: Sequence[str],
        load: LoadModel,
        *,
        idle_s: float = 0.0,
        aliases: Sequence[str] = (),
        find_plan: FindPlan = lambda reference: None,
        choose_victims: ChooseVictims = evict_all,
        before_unload: Callable[[], object] = lambda: None,
    ) -> None:
        """Set up the models without loading any.

        `references`: as `load` takes them. `aliases`: further names of the first one (see ModelNames).
        `idle_s`: unload after so long without a request; 0: never. `find_plan`: returns the plan of a model that is
        not loaded. `before_unload`: called before an engine is closed, to read its totals; it may block.

        Raises UsageError for an alias that is the name of another model.
        """
        self.names = ModelNames(references, aliases)
        self._open, self._before_unload = load, before_unload
        self._idle_s, self._find_plan, self._choose_victims = idle_s, find_plan, choose_victims
        self._by_name: dict[str, LoadedModel] = {}
        self._infos: dict[str, EngineInfo] = {}  # of models loaded now or earlier
        self._spec: Spec | None = None  # default spec, also for models loaded later; None: as planned
        self.loading = ""  # name of the model that is being loaded
        self.failure = ""  # why the last load failed
        self._load_lock = asyncio.Lock()  # held while a model is loaded or unloaded
        self._is_starting = self._is_closed = False
        self._pending: dict[str, PendingLoad] = {}  # the models that requests wait for
        self._failures: dict[str, tuple[float, str]] = {}  # failed loads by name: when and why

    # ---- what is known of the models
    @property
    def loaded(self) -> tuple[LoadedModel, ...]:
        """Return the loaded models, in the order of loading. Safe from any thread."""
        return tuple(self._by_name.values())

    def loaded_model(self, name: str) -> LoadedModel | None:
        return self._by_name.get(name)

    def loaded_info(self, name: str) -> EngineInfo | None:
        model = self.loaded_model(name)
        return None if model is None else model.info

    def latest_info(self, name: str) -> EngineInfo | None:
        """Return the info of a model as loaded now or last; None if it was never loaded."""
        return self._infos.get(name)

    @property
    def least_needed_first(self) -> list[LoadedModel]:
        return sorted(self.loaded, key=lambda model: model.eviction_key)

    @property
    def current(self) -> LoadedModel | None:
        """Return the model that a monitor shows: preferably a text model with a working engine, used most recently."""
        return max(
            self.loaded, key=lambda model: (model.info.task is ModelTask.TEXT, *model.eviction_key), default=None
        )

    @property
    def num_users(self) -> int:
        return sum(model.num_users for model in self.loaded)

    @property
    def state(self) -> str:
        """Return loading, ready, restarting, failed, or idle (unloaded: the next request loads)."""
        if (current := self.current) is not None:
            return current.client.state
        if self.loading:
            return "loading"
        return "failed" if self.failure else "idle"

    @property
    def trouble(self) -> str:
        """Return why the last load failed, or why engines are down; empty if all is well."""
        troubles = (f"{model.name}: {why}" for model in self.loaded if (why := model.client.trouble))
        return self.failure or "; ".join(troubles)

    @property
    def have_all_failed(self) -> bool:
        """Return whether every model of this server is loaded and its engine has failed for good."""
        states = [model.client.state for model in self.loaded]
        return states == ["failed"] * len(self.names.shown)

    def model_state(self, name: str) -> str:
        """Return unloaded, loading, ready, restarting or failed."""
        model = self.loaded_model(name)
        if model is not None:
            return model.client.state
        return "loading" if self.loading == name else "unloaded"

    def plan(self, name: str) -> Plan | None:
        """Return the plan by which a model would be loaded; None if it is not known."""
        return self._find_plan(self.names.reference(name))

    def task(self, name: str) -> ModelTask | None:
        """Return the task of a model; None if not known yet."""
        if (info := self.latest_info(name)) is not None:
            return info.task
        plan = self.plan(name)
        return None if plan is None else plan.task

    def sees_images(self, name: str) -> bool:
        """Return whether a model reads images, as loaded or planned (then memory may still be too short for it)."""
        if (info := self.latest_info(name)) is not None:
            return info.sees_images
        plan = self.plan(name)
        return plan is not None and plan.projector is not None

    def template_features(self, name: str) -> TemplateFeatures:
        """Return the features of a model's chat template, as loaded or planned; nothing if they are not known yet."""
        if (info := self.latest_info(name)) is not None:
            return read_template_features(info.template)
        plan = self.plan(name)
        return TemplateFeatures() if plan is None else TemplateFeatures(plan.takes_tools, plan.thinks)

    # ---- start, use, end
    async def start(self) -> LoadedModel:
        """Load the first model. Raises the EagleLocalError that prevents it."""
        self._is_starting = True
        try:
            async with self._load_lock:
                return await self._load(self.names.first)
        finally:
            self._is_starting = False

    @asynccontextmanager
    async def use(self, requested: str) -> AsyncIterator[LoadedModel]:
        """Keep a model loaded while the block runs, loading it if needed. Raises Problem."""
        if self._is_starting:
            raise unavailable(f"{self.names.first} is being loaded", retry_after_s=2)
        model = await self._acquire(self.names.resolve(requested))
        try:
            yield model
        finally:
            model.release()

    async def unload_idle(self) -> None:
        """Unload idle models, and record when engines failed; called periodically."""
        for model in self.loaded:
            model.record_failure()
        if self._idle_s <= 0 or self._is_starting or self._pending:
            return
        async with self._load_lock:
            for model in self.loaded:
                if model.is_idle(self._idle_s):
                    _log.info("%s is unloaded: idle for %g s", model.name, self._idle_s)
                    await self.unload(model)

    # ---- load and evict
    async def _acquire(self, name: str) -> LoadedModel:
        """Return the loaded model with its user count raised. Raises Problem."""
        if (model := self._find_available(name)) is not None:
            model.acquire()
            return model
        if name not in self._pending:
            self._pending[name] = PendingLoad(partial(self._load_for_waiting, name))
        pending = self._pending[name]
        try:
            return await pending.wait()
        finally:
            if not pending.is_needed and self._forget(name, pending):
                pending.cancel()

    def _find_available(self, name: str) -> LoadedModel | None:
        model = self.loaded_model(name)
        return model if model is not None and model.is_available else None

    async def _load_for_waiting(self, name: str, pending: PendingLoad) -> None:
        try:
            async with self._load_lock:
                pending.resolve(self._find_available(name) or await self._evict_and_load(name, pending))
        except Exception as error:
            pending.fail(error)
        finally:
            self._forget(name, pending)

    def _forget(self, name: str, pending: PendingLoad) -> bool:
        """Let later requests start a new load. Return False if that was done before."""
        if self._pending.get(name) is not pending:
            return False
        del self._pending[name]
        return True

    async def _evict_and_load(self, name: str, pending: PendingLoad) -> LoadedModel:
        failed_at, why = self._failures.get(name, (-RETRY_FAILED_S, ""))
        if time.monotonic() - failed_at < RETRY_FAILED_S and self.loaded_model(name) is None:
            raise load_problem(name, why)  # each attempt would evict models that others use
        with self._reserve_victims(name) as victims:
            for victim in victims:
                await victim.is_free.wait()
            pending.has_begun = True  # stays set: whatever the end, later requests start another load
            return await self._replace(victims, name)

    @contextlib.contextmanager
    def _reserve_victims(self, name: str) -> Iterator[list[LoadedModel]]:
        """Yield the models to unload for another one. While the block runs, no request may acquire them."""
        others = {self.names.reference(model.name): model for model in self.least_needed_first}
        failed = others.pop(self.names.reference(name), None)  # the same model, whose engine has failed for good
        victims = [others[reference] for reference in self._choose_victims(self.names.reference(name), list(others))]
        victims += [failed] if failed is not None else []
        for victim in victims:
            victim.is_unloading = True
        try:
            yield victims
        finally:
            for victim in victims:
                victim.is_unloading = False

    async def _replace(self, victims: list[LoadedModel], name: str) -> LoadedModel:
        """Unload `victims`, and more while memory is short, then load. Raises Problem once they are loaded again."""
        evicted = [victim.name for victim in victims if victim.name != name]
        for victim in victims:
            await self._evict(victim, name)
        try:
            while True:
                try:
                    return await self._load(name)
                except ResourceError:
                    if not self.loaded:
                        raise
                    victim = self.least_needed_first[0]
                    victim.is_unloading = True
                    await victim.is_free.wait()
                    await self._evict(victim, name)
                    evicted.append(victim.name)
        except EagleLocalError as error:
            why = describe_error(error)
            self._failures[name] = (time.monotonic(), why)
            _log.warning("%s cannot be loaded: %s", name, why)
            for other in evicted:
                with contextlib.suppress(EagleLocalError):
                    await self._load(other)
            raise load_problem(name, why) from error

    async def _evict(self, victim: LoadedModel, name: str) -> None:
        if victim.name != name:
            _log.info("%s is unloaded: %s takes its place", victim.name, name)
        await self.unload(victim)

    async def _load(self, name: str) -> LoadedModel:
        """Load a model. Raises EagleLocalError."""
        if self._is_closed:
            raise EngineError("the server is being stopped")
        self.loading = name
        try:
            result = await run_on_daemon_thread(partial(self._open, self.names.reference(name)))
        except EagleLocalError as error:
            self.failure = describe_error(error)
            raise
        except Exception as error:  # any error: it must be reported, and the evicted models reloaded
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
        self._infos[name] = result.info
        if self._is_closed:  # closed during the load
            await self.unload(model)
        return model

    async def unload(self, model: LoadedModel) -> None:
        """Close the engine of a model; unfinished answers fail."""
        model.is_unloading = True
        await asyncio.to_thread(self._before_unload)
        self._by_name.pop(model.name, None)  # close() may have removed it by now
        await asyncio.to_thread(model.client_thread.close)

    async def set_spec(self, spec: Spec) -> None:
        """Set the spec of requests that set none, for all models, also those loaded later."""
        self._spec = spec
        for model in self.loaded:
            await asyncio.to_thread(model.client.set_spec, spec)

    async def close(self) -> None:
        """Unload all models, and stop a load in progress; unfinished answers fail."""
        self._is_closed = True
        await asyncio.gather(*map(self.unload, self.loaded))


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


def load_problem(name: str, why: str) -> Problem:
    what = f"{name} cannot be loaded"
    return unavailable(f"{what}: {why}", retry_after_s=int(RETRY_FAILED_S), public=f"{what}; {SEE_LOG}")


# ---- pending load: a model to be loaded, and the requests that wait for it
class PendingLoad:
    """The task that loads a model, and the requests that wait for it.

    A load without waiting requests is cancelled if it has not begun. A begun load goes on: it cannot be interrupted,
    and its engine must not be lost.
    """

    def __init__(self, load: Callable[[PendingLoad], Coroutine[None, None, None]]) -> None:
        self.has_begun = False
        self._waiting: set[asyncio.Future[LoadedModel]] = set()
        self._task = asyncio.create_task(load(self))

    @property
    def is_needed(self) -> bool:
        return self.has_begun or bool(self._waiting)

    async def wait(self) -> LoadedModel:
        """Return the model, acquired for the caller. Raises the error that prevented the load."""
        future: asyncio.Future[LoadedModel] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            return await future
        except asyncio.CancelledError:
            if not future.cancelled() and future.exception() is None:  # it arrived at the same moment
                future.result().release()
            raise
        finally:
            self._waiting.discard(future)

    def resolve(self, model: LoadedModel) -> None:
        for future in self._unresolved():
            model.acquire()
            future.set_result(model)

    def fail(self, error: Exception) -> None:
        for future in self._unresolved():
            future.set_exception(error)

    def cancel(self) -> None:
        self._task.cancel()

    def _unresolved(self) -> list[asyncio.Future[LoadedModel]]:
        return [future for future in self._waiting if not future.done()]
