"""The models of a server: the first is loaded at the start, others when they are asked for, an idle one is unloaded.

They stay beside each other as far as there is room; who has to leave for whom, a function decides. Who uses a model
keeps it loaded; who wants one in its place waits until it is free, and whoever comes for it then waits behind. Models
come in the order in which they were first asked for, so that nobody is starved, and all who wait for one get it when
it comes. One is loaded at a time; what is loaded answers meanwhile. Knows how to load by being given a function.
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
from eaglelocal.core.plan import Plan
from eaglelocal.core.request import Spec
from eaglelocal.core.task import Task
from eaglelocal.errors import EagleLocalError, EngineError, ResourceError, UsageError
from eaglelocal.server.asking import Line
from eaglelocal.server.errors import NOT_FOUND, Problem, said, unavailable
from eaglelocal.server.names import ANY_NAME, DEFAULT_NAMES, meant_by, shown_names
from eaglelocal.server.residents import RETRY_FAILED_S, Awaited, Loaded, Opened, Resident, aside

_log = logging.getLogger("eaglelocal.server")

MAX_QUOTED_CHARS = 100


Load = Callable[[str], Opened]  # blocks; raises EagleLocalError
Planned = Callable[[str], Plan | None]  # None: not known yet
# who has to leave for a reference: of these, the one that can be spared most comes first
MakeRoom = Callable[[str, Sequence[str]], Sequence[str]]


def all_leave(reference: str, others: Sequence[str]) -> Sequence[str]:
    """One model at a time."""
    return others


class Models:
    """The names that may be asked for; the first one is loaded at the start."""

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
        """`names`: references, as `load` takes them; people are told the name of a file, and may say its path too.
        `idle_s`: unload after so long without a request; 0: never. `aliases`: of the first; "*": any other name.
        `planned`: what is known of a model that is not loaded.

        Raises UsageError for an alias that is the name of another model.
        """
        self._references = {shown: name for name, shown in shown_names(names).items()}
        self.names = tuple(self._references)
        if taken := set(aliases) & set(self.names[1:]):
            raise UsageError(f"--alias {min(taken)}: that is another model of this server")
        self.listed = tuple(dict.fromkeys([*self.names, *(name for name in aliases if name != ANY_NAME)]))
        self._meant = meant_by(self._references) | dict.fromkeys(aliases, self.names[0])
        self._load, self._idle_s, self._planned, self._make_room = load, idle_s, planned, make_room
        self._turn = asyncio.Lock()  # of what is to be loaded
        self._residents: dict[str, Resident] = {}
        self._loading = ""
        self._is_starting = False
        self._is_closed = False
        self._awaited: dict[str, Awaited] = {}  # models that somebody waits for
        self._failures: dict[str, tuple[float, str]] = {}  # of loads: when and why
        self.spec: Spec | None = None  # how everything is to be drafted, whatever is loaded later; None: as planned
        self.before_close: Callable[[], None] = nothing  # a last look at what is loaded; blocks
        self.failure = ""  # why the last load failed
        self.infos: dict[str, EngineInfo] = {}  # of what has been loaded, now or before

    @property
    def residents(self) -> tuple[Resident, ...]:
        """What is loaded, in the order of loading; any thread may look."""
        return tuple(self._residents.values())

    @property
    def loaded(self) -> Loaded | None:
        """Of what is loaded, what a monitor shows: of those that talk, and can, the one that was used last."""
        last = max(
            self.residents,
            key=lambda one: (one.loaded.info.task is Task.TEXT, *one.spared),
            default=None,
        )
        return None if last is None else last.loaded

    def info_of(self, name: str) -> EngineInfo | None:
        """Of a model that is loaded."""
        resident = self._residents.get(name)
        return None if resident is None else resident.loaded.info

    @property
    def num_users(self) -> int:
        return sum(one.num_users for one in self.residents)

    @property
    def state(self) -> str:
        """loading, ready, restarting, failed, idle (unloaded: the next request loads)."""
        loaded = self.loaded
        if loaded is not None:
            return loaded.client.state
        if self._loading:
            return "loading"
        return "failed" if self.failure else "idle"

    @property
    def trouble(self) -> str:
        """Why the last load failed, or why an engine is away at the moment."""
        troubles = (f"{one.loaded.name}: {why}" for one in self.residents if (why := one.loaded.client.trouble))
        return self.failure or "; ".join(troubles)

    @property
    def are_given_up(self) -> bool:
        """Is every model of this server loaded, and the engine of each given up?"""
        states = [one.loaded.client.state for one in self.residents]
        return len(states) == len(self.names) and set(states) == {"failed"}

    def state_of(self, name: str) -> str:
        """unloaded, loading, ready, restarting, failed."""
        resident = self._residents.get(name)
        if resident is not None:
            return resident.loaded.client.state
        return "loading" if self._loading == name else "unloaded"

    def name_of(self, asked: str) -> str:
        """The model that a request means. Raises Problem (404)."""
        if asked in DEFAULT_NAMES:
            return self.names[0]
        name = self._meant.get(asked) or self._meant.get(ANY_NAME)
        if name is None:
            asked = asked[:MAX_QUOTED_CHARS]
            there = f"there is no model {asked!r} here, only: {', '.join(self.listed)}"
            way_out = f"--alias {shlex.quote(asked)} gives the first one this name, --alias '*' any"
            raise Problem(404, f"{there} ({way_out})", NOT_FOUND, parameter="model", code="model_not_found")
        return name

    def task(self, name: str) -> Task | None:
        """None: nobody knows yet."""
        if name in self.infos:
            return self.infos[name].task
        plan = self._planned(self._references[name])
        return None if plan is None else plan.task

    def sees_images(self, name: str) -> bool:
        """As it was loaded, or is planned: memory may still be short for it."""
        if name in self.infos:
            return self.infos[name].sees_images
        plan = self._planned(self._references[name])
        return plan is not None and plan.projector is not None

    @asynccontextmanager
    async def use(self, asked: str) -> AsyncIterator[Loaded]:
        """The model, loaded, and kept so meanwhile. Raises Problem."""
        if self._is_starting:
            raise unavailable(f"{self.names[0]} is being loaded", retry_after_s=2)
        resident = await self._entered(self.name_of(asked))
        try:
            yield resident.loaded
        finally:
            resident.leave()

    async def _entered(self, name: str) -> Resident:
        """The model, with one user more. Raises Problem."""
        if (resident := self._at_hand(name)) is not None:
            resident.enter()
            return resident
        if name not in self._awaited:
            self._awaited[name] = Awaited(partial(self._fetch, name))
        awaited = self._awaited[name]
        try:
            return await awaited.wait()
        finally:
            if not awaited.is_wanted and self._forget(name, awaited):
                awaited.give_up()

    def _at_hand(self, name: str) -> Resident | None:
        resident = self._residents.get(name)
        is_there = resident is not None and not (resident.is_leaving or resident.is_worth_another_try)
        return resident if is_there else None

    async def _fetch(self, name: str, awaited: Awaited) -> None:
        """Bring it to all who wait for it."""
        try:
            async with self._turn:
                awaited.give(self._at_hand(name) or await self._come(name, awaited))
        except Exception as error:
            awaited.refuse(error)
        finally:
            self._forget(name, awaited)

    async def _come(self, name: str, awaited: Awaited) -> Resident:
        self._check_worth_loading(name)
        with self._leaving(name) as leaving:
            for one in leaving:
                await one.is_free.wait()
            awaited.is_loading = True
            try:
                return await self._swap(name, leaving)
            finally:
                awaited.is_loading = False

    def _forget(self, name: str, awaited: Awaited) -> bool:
        """Who comes from now on waits for another. False: it was forgotten before."""
        is_known = self._awaited.get(name) is awaited
        if is_known:
            del self._awaited[name]
        return is_known

    def _check_worth_loading(self, name: str) -> None:
        """Raises Problem: what has just failed to load is not tried again at once, for everybody else would pay."""
        failed_at, why = self._failures.get(name, (-RETRY_FAILED_S, ""))
        if time.monotonic() - failed_at < RETRY_FAILED_S and name not in self._residents:
            raise unavailable(f"{name} cannot be loaded: {why}", retry_after_s=int(RETRY_FAILED_S))

    @contextlib.contextmanager
    def _leaving(self, name: str) -> Iterator[list[Resident]]:
        """Who makes room for a model; nobody enters them, unless its caller gives up."""
        others = {self._references[one.loaded.name]: one for one in self._spared() if one.loaded.name != name}
        leaving = [others[reference] for reference in self._make_room(self._references[name], list(others))]
        leaving += [one for one in self.residents if one.loaded.name == name]  # its engine was given up
        for one in leaving:
            one.is_leaving = True
        try:
            yield leaving
        finally:
            for one in leaving:
                one.is_leaving = False

    def _spared(self) -> list[Resident]:
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
        """End what is loaded, or is being loaded; what it still answers fails."""
        self._is_closed = True
        await asyncio.gather(*map(self._shut, self.residents))

    async def look_after(self) -> None:
        """Unload models that nobody has used for long, and see when one fails; call it now and then."""
        for resident in self.residents:
            resident.note_failure()
        if self._is_starting or self._awaited:
            return
        async with self._turn:
            for resident in self.residents:
                if self._is_idle(resident):
                    _log.info("%s is unloaded: idle for %g s", resident.loaded.name, self._idle_s)
                    await self._shut(resident)

    def _is_idle(self, resident: Resident) -> bool:
        is_free = not resident.num_users and not resident.is_leaving
        return self._idle_s > 0 and is_free and time.monotonic() - resident.used_at >= self._idle_s

    async def _swap(self, name: str, leaving: list[Resident]) -> Resident:
        """The model in the place of others, and of more where it still lacks memory. Raises Problem; then they are
        loaded again."""
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
        """Its name."""
        one = self._spared()[0]
        one.is_leaving = True
        await one.is_free.wait()
        await self._leave(one, name)
        return one.loaded.name

    async def _leave(self, one: Resident, name: str) -> None:
        if one.loaded.name != name:
            _log.info("%s is unloaded: %s takes its place", one.loaded.name, name)
        await self._shut(one)

    async def _open(self, name: str) -> Resident:
        if self._is_closed:
            raise EngineError("the server is being stopped")
        self._loading = name
        try:
            opened = await aside(partial(self._load, self._references[name]))
        except EagleLocalError as error:
            self.failure = said(error)
            raise
        except Exception as error:  # whatever it is: somebody is told, and what left for it comes back
            known = unforeseen(error)
            self.failure = said(known)
            raise known from error
        finally:
            self._loading = ""
        self.failure = ""
        if self.spec is not None:
            opened.client.set_spec(self.spec)
        resident = self._residents[name] = Resident(Loaded(name, Line(opened.client), opened.info))
        self.infos[name] = opened.info
        if self._is_closed:  # meanwhile
            await self._shut(resident)
        return resident

    async def _shut(self, resident: Resident) -> None:
        resident.is_leaving = True
        await asyncio.to_thread(self.before_close)
        self._residents.pop(resident.loaded.name, None)  # the end of the server may come in between
        await asyncio.to_thread(resident.loaded.line.close)


def unforeseen(error: Exception) -> EngineError:
    _log.error("a load failed", exc_info=error)
    return EngineError(f"{type(error).__name__}: {error}", hint="this is a bug: please report it with the log")


def nothing() -> None:
    pass
