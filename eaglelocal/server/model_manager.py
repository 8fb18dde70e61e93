"""The models of a server: the first is loaded at the start, others on request; idle ones are unloaded.

Several stay loaded as memory allows; `make_room` decides which ones a new model replaces. A request keeps its model
loaded; a model to be replaced is unloaded once it is free, and later requests for it wait until it is loaded again.
Models load one at a time, in the order of their first waiting request, so that none starves; all requests waiting for
a model get it when it is loaded. Loaded models answer meanwhile. How to load is a function passed in.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shlex
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

from eaglelocal.core.events import EngineInfo
from eaglelocal.core.model_task import ModelTask
from eaglelocal.core.plan import Plan
from eaglelocal.core.request import Spec
from eaglelocal.errors import EagleLocalError, EngineError, ResourceError, UsageError
from eaglelocal.server.event_stream import ClientThread
from eaglelocal.server.http_errors import NOT_FOUND, Problem, said, unavailable
from eaglelocal.server.loaded_models import RETRY_FAILED_S, Loaded, LoadedModel, LoadingModel, Opened, aside
from eaglelocal.server.model_names import ANY_NAME, DEFAULT_NAMES, meant_by, shown_names

_log = logging.getLogger("eaglelocal.server")

MAX_QUOTED_CHARS = 100


Load = Callable[[str], Opened]  # blocks; raises EagleLocalError
Planned = Callable[[str], Plan | None]  # None: not known yet
# for a reference to load, and the loaded references, least needed first: those to unload
MakeRoom = Callable[[str, Sequence[str]], Sequence[str]]


def all_leave(reference: str, others: Sequence[str]) -> Sequence[str]:
    """Return all others: one model at a time."""
    return others


class ModelManager:
    """The models that requests may name; the first one is loaded at the start."""

    def __init__(
        self,
        names: Sequence[str],
        load: Load,
        *,
        idle_s: float = 0.0,
        aliases: Sequence[str] = (),
        planned: Planned = lambda reference: None,
        make_room: MakeRoom = all_leave,
    ) -> None:
        """Set up the models without loading any.

        `names`: references, as `load` takes them; for a file, its name is shown, and its path is accepted too.
        `idle_s`: unload after so long without a request; 0: never. `aliases`: of the first; "*": any other name.
        `planned`: returns the plan of a model that is not loaded, if known.

        Raises UsageError for an alias that is the name of another model.
        """
        self._references = {shown: name for name, shown in shown_names(names).items()}
        self.names = tuple(self._references)
        if taken := set(aliases) & set(self.names[1:]):
            raise UsageError(f"--alias {min(taken)}: that is another model of this server")
        self.listed = tuple(dict.fromkeys([*self.names, *(name for name in aliases if name != ANY_NAME)]))
        self._meant = meant_by(self._references) | dict.fromkeys(aliases, self.names[0])
        self._load, self._idle_s, self._planned, self._make_room = load, idle_s, planned, make_room
        self._turn = asyncio.Lock()  # held while a model is loaded or unloaded
        self._residents: dict[str, LoadedModel] = {}
        self._loading = ""
        self._is_starting = False
        self._is_closed = False
        self._awaited: dict[str, LoadingModel] = {}  # models that requests wait for
        self._failures: dict[str, tuple[float, str]] = {}  # failed loads by name: when and why
        self.spec: Spec | None = None  # how to draft for all models, also ones loaded later; None: as planned
        self.before_close: Callable[[], None] = nothing  # called before a model is unloaded, to read its totals; blocks
        self.failure = ""  # why the last load failed
        self.infos: dict[str, EngineInfo] = {}  # of models loaded now or earlier

    @property
    def residents(self) -> tuple[LoadedModel, ...]:
        """Return the loaded models, in the order of loading. Safe from any thread."""
        return tuple(self._residents.values())

    @property
    def loaded(self) -> Loaded | None:
        """Return the model for a monitor to show: preferably a text model with a working engine, used most recently."""
        last = max(
            self.residents,
            key=lambda one: (one.loaded.info.task is ModelTask.TEXT, *one.spared),
            default=None,
        )
        return None if last is None else last.loaded

    def info_of(self, name: str) -> EngineInfo | None:
        """Return the info of a model that is loaded, else None."""
        resident = self._residents.get(name)
        return None if resident is None else resident.loaded.info

    @property
    def num_users(self) -> int:
        return sum(one.num_users for one in self.residents)

    @property
    def state(self) -> str:
        """Return loading, ready, restarting, failed, or idle (unloaded: the next request loads)."""
        loaded = self.loaded
        if loaded is not None:
            return loaded.client.state
        if self._loading:
            return "loading"
        return "failed" if self.failure else "idle"

    @property
    def trouble(self) -> str:
        """Return why the last load failed, or why engines are away; empty if all is well."""
        troubles = (f"{one.loaded.name}: {why}" for one in self.residents if (why := one.loaded.client.trouble))
        return self.failure or "; ".join(troubles)

    @property
    def are_given_up(self) -> bool:
        """Return whether every model of this server is loaded and its engine has failed for good."""
        states = [one.loaded.client.state for one in self.residents]
        return len(states) == len(self.names) and set(states) == {"failed"}

    def state_of(self, name: str) -> str:
        """Return unloaded, loading, ready, restarting or failed."""
        resident = self._residents.get(name)
        if resident is not None:
            return resident.loaded.client.state
        return "loading" if self._loading == name else "unloaded"

    def name_of(self, asked: str) -> str:
        """Return the model that a name in a request means. Raises Problem (404)."""
        if asked in DEFAULT_NAMES:
            return self.names[0]
        name = self._meant.get(asked) or self._meant.get(ANY_NAME)
        if name is None:
            asked = asked[:MAX_QUOTED_CHARS]
            there = f"there is no model {asked!r} here, only: {', '.join(self.listed)}"
            way_out = f"--alias {shlex.quote(asked)} gives the first one this name, --alias '*' any"
            raise Problem(404, f"{there} ({way_out})", NOT_FOUND, parameter="model", code="model_not_found")
        return name

    def task(self, name: str) -> ModelTask | None:
        """Return the task of a model; None if not known yet."""
        if name in self.infos:
            return self.infos[name].task
        plan = self._planned(self._references[name])
        return None if plan is None else plan.task

    def sees_images(self, name: str) -> bool:
        """Return whether a model reads images, as loaded or as planned (then memory may still be too short for it)."""
        if name in self.infos:
            return self.infos[name].sees_images
        plan = self._planned(self._references[name])
        return plan is not None and plan.projector is not None

    @asynccontextmanager
    async def use(self, asked: str) -> AsyncIterator[Loaded]:
        """Keep a model loaded while the block runs, loading it if needed. Raises Problem."""
        if self._is_starting:
            raise unavailable(f"{self.names[0]} is being loaded", retry_after_s=2)
        resident = await self._entered(self.name_of(asked))
        try:
            yield resident.loaded
        finally:
            resident.leave()

    async def _entered(self, name: str) -> LoadedModel:
        """Return the loaded model with its user count raised. Raises Problem."""
        if (resident := self._at_hand(name)) is not None:
            resident.enter()
            return resident
        if name not in self._awaited:
            self._awaited[name] = LoadingModel(partial(self._fetch, name))
        awaited = self._awaited[name]
        try:
            return await awaited.wait()
        finally:
            if not awaited.is_wanted and self._forget(name, awaited):
                awaited.give_up()

    def _at_hand(self, name: str) -> LoadedModel | None:
        resident = self._residents.get(name)
        is_there = resident is not None and not (resident.is_leaving or resident.is_worth_another_try)
        return resident if is_there else None

    async def _fetch(self, name: str, awaited: LoadingModel) -> None:
        """Load a model, or find it loaded, and give it to all waiting requests."""
        try:
            async with self._turn:
                awaited.give(self._at_hand(name) or await self._come(name, awaited))
        except Exception as error:
            awaited.refuse(error)
        finally:
            self._forget(name, awaited)

    async def _come(self, name: str, awaited: LoadingModel) -> LoadedModel:
        self._check_worth_loading(name)
        with self._leaving(name) as leaving:
            for one in leaving:
                await one.is_free.wait()
            awaited.is_loading = True
            try:
                return await self._swap(name, leaving)
            finally:
                awaited.is_loading = False

    def _forget(self, name: str, awaited: LoadingModel) -> bool:
        """Let later requests start a new Awaited. Return False if that was done before."""
        is_known = self._awaited.get(name) is awaited
        if is_known:
            del self._awaited[name]
        return is_known

    def _check_worth_loading(self, name: str) -> None:
        """Raise Problem if the model failed to load a moment ago: each attempt unloads models that others use."""
        failed_at, why = self._failures.get(name, (-RETRY_FAILED_S, ""))
        if time.monotonic() - failed_at < RETRY_FAILED_S and name not in self._residents:
            raise unavailable(f"{name} cannot be loaded: {why}", retry_after_s=int(RETRY_FAILED_S))

    @contextlib.contextmanager
    def _leaving(self, name: str) -> Iterator[list[LoadedModel]]:
        """Yield the models to unload for another, marked as leaving: no request enters them while the block runs."""
        others = {self._references[one.loaded.name]: one for one in self._spared() if one.loaded.name != name}
        leaving = [others[reference] for reference in self._make_room(self._references[name], list(others))]
        leaving += [one for one in self.residents if one.loaded.name == name]  # its engine has failed for good
        for one in leaving:
            one.is_leaving = True
        try:
            yield leaving
        finally:
            for one in leaving:
                one.is_leaving = False

    def _spared(self) -> list[LoadedModel]:
        return sorted(self.residents, key=lambda one: one.spared)

    async def start(self) -> Loaded:
        """Load the first model. Raises the EagleLocalError that prevents it."""
        self._is_starting = True
        try:
            async with self._turn:
                return (await self._open(self.names[0])).loaded
        finally:
            self._is_starting = False

    async def close(self) -> None:
        """Unload all models and stop a load in progress; unfinished answers fail."""
        self._is_closed = True
        await asyncio.gather(*map(self._shut, self.residents))

    async def look_after(self) -> None:
        """Unload idle models, and record when engines failed; called periodically."""
        for resident in self.residents:
            resident.note_failure()
        if self._is_starting or self._awaited:
            return
        async with self._turn:
            for resident in self.residents:
                if self._is_idle(resident):
                    _log.info("%s is unloaded: idle for %g s", resident.loaded.name, self._idle_s)
                    await self._shut(resident)

    def _is_idle(self, resident: LoadedModel) -> bool:
        is_free = not resident.num_users and not resident.is_leaving
        return self._idle_s > 0 and is_free and time.monotonic() - resident.used_at >= self._idle_s

    async def _swap(self, name: str, leaving: list[LoadedModel]) -> LoadedModel:
        """Unload `leaving`, and more models while memory is short, then load a model. Raises Problem, after loading the
        unloaded ones again.
        """
        gone = [one.loaded.name for one in leaving if one.loaded.name != name]
        for one in leaving:
            await self._leave(one, name)
        try:
            while True:
                try:
                    return await self._open(name)
                except ResourceError:
                    if not self._residents:
                        raise
                    gone.append(await self._one_leaves(name))
        except EagleLocalError as error:
            self._failures[name] = (time.monotonic(), said(error))
            _log.warning("%s cannot be loaded: %s", name, said(error))
            for other in gone:
                with contextlib.suppress(EagleLocalError):
                    await self._open(other)
            raise unavailable(f"{name} cannot be loaded: {said(error)}", retry_after_s=int(RETRY_FAILED_S)) from error

    async def _one_leaves(self, name: str) -> str:
        """Unload the least needed model once it is free; return its name."""
        one = self._spared()[0]
        one.is_leaving = True
        await one.is_free.wait()
        await self._leave(one, name)
        return one.loaded.name

    async def _leave(self, one: LoadedModel, name: str) -> None:
        if one.loaded.name != name:
            _log.info("%s is unloaded: %s takes its place", one.loaded.name, name)
        await self._shut(one)

    async def _open(self, name: str) -> LoadedModel:
        if self._is_closed:
            raise EngineError("the server is being stopped")
        self._loading = name
        try:
            opened = await aside(partial(self._load, self._references[name]))
        except EagleLocalError as error:
            self.failure = said(error)
            raise
        except Exception as error:  # any error: it must be reported, and the unloaded models loaded again
            known = unforeseen(error)
            self.failure = said(known)
            raise known from error
        finally:
            self._loading = ""
        self.failure = ""
        if self.spec is not None:
            opened.client.set_spec(self.spec)
        resident = self._residents[name] = LoadedModel(Loaded(name, ClientThread(opened.client), opened.info))
        self.infos[name] = opened.info
        if self._is_closed:  # closed meanwhile
            await self._shut(resident)
        return resident

    async def _shut(self, resident: LoadedModel) -> None:
        resident.is_leaving = True
        await asyncio.to_thread(self.before_close)
        self._residents.pop(resident.loaded.name, None)  # close() may have removed it meanwhile
        await asyncio.to_thread(resident.loaded.line.close)


def unforeseen(error: Exception) -> EngineError:
    _log.error("a load failed", exc_info=error)
    return EngineError(f"{type(error).__name__}: {error}", hint="this is a bug: please report it with the log")


def nothing() -> None:
    pass
