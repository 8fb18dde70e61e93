"""The models of a server: one is loaded, others are loaded when they are asked for, an idle one is unloaded.

A model may have more names: those given to the first one (`--alias`), and of a file also what is left of its path.
Who uses a model keeps it loaded; who wants another one waits until it is free, and whoever comes then waits behind
(first come, first served, so that nobody is starved). Knows how to load by being given a function.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import posixpath
import shlex
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import PurePosixPath

from eaglelocal.core.events import EngineInfo
from eaglelocal.core.request import Spec
from eaglelocal.errors import EagleLocalError, UsageError
from eaglelocal.server.asking import Answerer, Line
from eaglelocal.server.errors import NOT_FOUND, Problem, said, unavailable

_log = logging.getLogger("eaglelocal.server")

RETRY_FAILED_S = 30.0
DEFAULT_NAMES = frozenset({"", "default"})
ANY_NAME = "*"  # as an alias
MAX_QUOTED_CHARS = 100


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


Load = Callable[[str], Opened]  # blocks; raises EagleLocalError
Planned = Callable[[str], bool | None]  # does it make embeddings? None: not known yet


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


class Models:
    """The names that may be asked for; the first one is loaded at the start."""

    def __init__(
        self,
        names: Sequence[str],
        load: Load,
        *,
        idle_s: float = 0.0,
        aliases: Sequence[str] = (),
        planned: Planned = lambda name: None,
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
        self._load, self._idle_s, self._planned = load, idle_s, planned
        self._turn = asyncio.Lock()
        self._is_free = asyncio.Event()
        self._is_free.set()
        self._num_users = 0
        self._loaded: Loaded | None = None
        self._loading = ""
        self._is_starting = False
        self._swapping: asyncio.Task[Loaded] | None = None  # who waits for a load, in the name of a caller
        self._used_at = time.monotonic()
        self._failed_at: float | None = None
        self._failures: dict[str, tuple[float, str]] = {}  # of loads: when and why
        self.spec: Spec | None = None  # how everything is to be drafted, whatever is loaded later; None: as planned
        self.before_close: Callable[[], None] = nothing  # a last look at what is loaded; blocks
        self.failure = ""  # why the last load failed
        self.infos: dict[str, EngineInfo] = {}  # of what has been loaded, now or before

    @property
    def loaded(self) -> Loaded | None:
        return self._loaded

    @property
    def num_users(self) -> int:
        return self._num_users

    @property
    def state(self) -> str:
        """loading, ready, restarting, failed, idle (unloaded: the next request loads)."""
        if self._loading:
            return "loading"
        if self._loaded is None:
            return "failed" if self.failure else "idle"
        return self._loaded.client.state

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

    def makes_embeddings(self, name: str) -> bool | None:
        """None: nobody knows yet."""
        if self._loaded is not None and self._loaded.name == name:
            return bool(self._loaded.info.embedding_size)
        return self._planned(self._references[name])

    def sees_images(self, name: str) -> bool:
        """As far as is known: it has been loaded."""
        return name in self.infos and self.infos[name].sees_images

    @asynccontextmanager
    async def use(self, asked: str) -> AsyncIterator[Loaded]:
        """The model, loaded, and kept so meanwhile. Raises Problem.

        A load goes on when its caller gives up: it cannot be called back, and its model must not be lost. Who gives
        up while waiting is forgotten.
        """
        if self._is_starting:
            raise unavailable(f"{self.names[0]} is being loaded", retry_after_s=2)
        entering = asyncio.create_task(self._enter(self.name_of(asked)))
        try:
            loaded = await asyncio.shield(entering)
        except asyncio.CancelledError:
            entering.add_done_callback(self._left_early)
            if entering is not self._swapping:
                entering.cancel()
            raise
        try:
            yield loaded
        finally:
            self._leave()

    async def _enter(self, name: str) -> Loaded:
        async with self._turn:
            loaded = self._loaded
            if loaded is None or loaded.name != name or self._is_worth_another_try(loaded):
                await self._is_free.wait()
                self._swapping = asyncio.current_task()
                try:
                    loaded = await self._swap(name)
                finally:
                    self._swapping = None
            self._num_users += 1
            self._is_free.clear()
            return loaded

    def _leave(self) -> None:
        self._used_at = time.monotonic()
        self._num_users -= 1
        if not self._num_users:
            self._is_free.set()

    def _left_early(self, entering: asyncio.Task[Loaded]) -> None:
        if not entering.cancelled() and entering.exception() is None:
            self._leave()

    def _is_worth_another_try(self, loaded: Loaded) -> bool:
        """An engine that was given up is started anew for a request that comes a while later."""
        self._note_failure(loaded)
        return self._failed_at is not None and time.monotonic() - self._failed_at >= RETRY_FAILED_S

    def _note_failure(self, loaded: Loaded) -> None:
        if loaded.client.state != "failed":
            self._failed_at = None
        elif self._failed_at is None:
            self._failed_at = time.monotonic()

    async def start(self) -> Loaded:
        """Load the first model. Raises the EagleLocalError that prevents it."""
        self._is_starting = True
        try:
            async with self._turn:
                return await self._open(self.names[0])
        finally:
            self._is_starting = False

    async def close(self) -> None:
        """End what is loaded; what it still answers fails."""
        await self._shut()

    async def look_after(self) -> None:
        """Unload a model that nobody has used for long, and see when one fails; call it now and then."""
        if self._loaded is not None:
            self._note_failure(self._loaded)
        if self._idle_s <= 0 or self._num_users or self._turn.locked() or self._loaded is None:
            return
        if time.monotonic() - self._used_at >= self._idle_s:
            async with self._turn:
                if not self._num_users:
                    _log.info("%s is unloaded: idle for %g s", self._loaded.name, self._idle_s)
                    await self._shut()

    async def _swap(self, name: str) -> Loaded:
        """The model in the place of the one that is loaded. Raises Problem; then that one is loaded again.

        What has just failed to load is not tried again at once: everybody else would pay for it.
        """
        failed_at, why = self._failures.get(name, (-RETRY_FAILED_S, ""))
        if time.monotonic() - failed_at < RETRY_FAILED_S and (self._loaded is None or self._loaded.name != name):
            raise unavailable(f"{name} cannot be loaded: {why}", retry_after_s=int(RETRY_FAILED_S))
        before = self._loaded
        await self._shut()
        try:
            return await self._open(name)
        except EagleLocalError as error:
            self._failures[name] = (time.monotonic(), said(error))
            if before is not None and before.name != name:
                with contextlib.suppress(EagleLocalError):
                    await self._open(before.name)
            raise unavailable(f"{name} cannot be loaded: {said(error)}", retry_after_s=int(RETRY_FAILED_S)) from error

    async def _open(self, name: str) -> Loaded:
        self._loading = name
        try:
            opened = await aside(partial(self._load, self._references[name]))
        except EagleLocalError as error:
            self.failure = said(error)
            raise
        finally:
            self._loading = ""
        self.failure, self._failed_at, self._used_at = "", None, time.monotonic()
        if self.spec is not None:
            opened.client.set_spec(self.spec)
        self._loaded = Loaded(name, Line(opened.client), opened.info)
        self.infos[name] = opened.info
        return self._loaded

    async def _shut(self) -> None:
        if self._loaded is not None:
            await asyncio.to_thread(self.before_close)
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            await asyncio.to_thread(loaded.line.close)


def shown_names(references: Sequence[str]) -> dict[str, str]:
    """By reference, what people are told: of a file here its name, for where it lies concerns nobody else, unless
    another one is called so too."""
    files = {one: PurePosixPath(one).name if one.endswith(".gguf") and ":" not in one else one for one in references}
    count = Counter(files.values())
    return {one: name if count[name] == 1 else one for one, name in files.items()}


def meant_by(references: Mapping[str, str]) -> dict[str, str]:
    """Each name, its reference, and what else means one of these models and no other, by what is meant."""
    others = [(other, name) for name, reference in references.items() for other in names_of_file(reference)]
    count = Counter(other for other, _ in others)
    clear = {other: name for other, name in others if count[other] == 1}
    exact = {one: name for name, reference in references.items() for one in (reference, name)}
    return clear | exact


def names_of_file(name: str) -> set[str]:
    """`./models/x.gguf` -> `x.gguf`, `x`, and `models/x.gguf`, as clients that tidy their URLs have it."""
    if not name.endswith(".gguf"):
        return set()
    path = PurePosixPath(name)
    return {path.name, path.stem, posixpath.normpath(name).lstrip("/")}


def nothing() -> None:
    pass
