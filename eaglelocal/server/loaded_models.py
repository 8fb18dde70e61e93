"""A loaded model with its client and the count of its users, and the names of a server's models."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import posixpath
import shlex
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from pathlib import PurePosixPath
from typing import Protocol

from eaglelocal.client.client import Client, OnEvent
from eaglelocal.core.adapters import AdapterFile, AdapterMix, apply_mix
from eaglelocal.core.events import EngineInfo, Failed
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import AnyRequest, Spec
from eaglelocal.errors import EagleLocalError, EngineError, UsageError
from eaglelocal.server.http_errors import NOT_FOUND, Problem

RETRY_FAILED_S = 30.0

_log = logging.getLogger("eaglelocal.server")


class RestartingClient(Client, Protocol):
    """A Client for all kinds of requests, whose engine restarts after a crash."""

    @property
    def restarts(self) -> int: ...

    @property
    def trouble(self) -> str:
        """Return why the engine is down; empty while it runs."""

    def submit(self, request: AnyRequest, on_event: OnEvent) -> None: ...

    def set_spec(self, spec: Spec) -> None: ...

    def set_adapters(self, mix: AdapterMix) -> None: ...


class ClientThread:
    """A client for use in asyncio: calls that may block run in order on one thread per client.

    So a cancel never overtakes its request, and a hanging engine does not block requests to other models.
    """

    def __init__(self, client: RestartingClient) -> None:
        self.client = client
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="client")

    def submit(self, request: AnyRequest, on_event: OnEvent) -> None:
        try:
            self._thread.submit(self._submit, request, on_event)
        except RuntimeError:  # closed meanwhile
            on_event(Failed(request.id, EngineError("cannot send the request: the model is unloaded")))

    def cancel(self, request_id: str) -> None:
        with contextlib.suppress(RuntimeError):  # closed meanwhile: nothing runs any more
            self._thread.submit(self.client.cancel, request_id)

    def close(self) -> None:
        """Close the client; blocks until it is closed."""
        self.client.close()
        self._thread.shutdown(wait=False)

    def _submit(self, request: AnyRequest, on_event: OnEvent) -> None:
        try:
            self.client.submit(request, on_event)
        except Exception as error:  # any error: the caller waits for an answer
            failure = error if isinstance(error, EagleLocalError) else EngineError(f"cannot send the request: {error}")
            on_event(Failed(request.id, failure))


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
    is_unloading: bool = False  # it is unloaded, or will be once it is free: no request may acquire it
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

    def record_failure(self) -> None:
        """Record when the engine failed for good, if it has."""
        if self.client.state != "failed":
            self.failed_at = None
        elif self.failed_at is None:
            self.failed_at = time.monotonic()

    @property
    def is_available(self) -> bool:
        """Return whether requests may use it: it is not being evicted, and its engine did not fail for good so long ago
        that the next request reloads it.
        """
        self.record_failure()
        is_due_for_retry = self.failed_at is not None and time.monotonic() - self.failed_at >= RETRY_FAILED_S
        return not (self.is_unloading or is_due_for_retry)

    def is_idle(self, idle_s: float) -> bool:
        return not (self.num_users or self.is_unloading) and time.monotonic() - self.used_at >= idle_s

    @property
    def eviction_key(self) -> tuple[bool, bool, float]:
        """Return a sort key, least needed first: models that cannot answer, then unused ones, by time of last use."""
        return self.client.state != "failed", self.num_users > 0, self.used_at


# ---- model names: the names of a server's models. Pure
#
# A model may have several names: aliases for the first one (`--alias`), and for a file also parts of its path.
DEFAULT_NAMES = frozenset({"", "default"})
ANY_NAME = "*"  # as an alias
MAX_QUOTED_CHARS = 100


class ModelNames:
    """The public names of a server's models, and every name by which a request may mean one of them.

    shown   the public name of each model, the first model's first
    listed  the same, and the aliases of the first one
    """

    def __init__(self, references: Sequence[str], aliases: Sequence[str] = ()) -> None:
        """Name the models. `aliases` are further names of the first one; "*": any other name.

        Raises UsageError for an alias that is the name of another model.
        """
        self._references = {shown: name for name, shown in shown_names(references).items()}
        self.shown = tuple(self._references)
        if taken := set(aliases) & set(self.shown[1:]):
            raise UsageError(f"--alias {min(taken)}: that is another model of this server")
        self.listed = tuple(dict.fromkeys([*self.shown, *(name for name in aliases if name != ANY_NAME)]))
        self._names = unique_names(self._references) | dict.fromkeys(aliases, self.first)
        self._folded = {name.casefold(): meant for name, meant in self._names.items()}

    @property
    def first(self) -> str:
        return self.shown[0]

    def reference(self, name: str) -> str:
        """Return the reference by which a model is loaded."""
        return self._references[name]

    def resolve(self, requested: str) -> str:
        """Return the model that a name in a request means. Raises Problem (404)."""
        if requested in DEFAULT_NAMES:
            return self.first
        name = self._names.get(requested) or self._folded.get(requested.casefold()) or self._names.get(ANY_NAME)
        if name is None:
            requested = requested[:MAX_QUOTED_CHARS]
            message = f"there is no model {requested!r} here, only: {', '.join(self.listed)}"
            hint = f"--alias {shlex.quote(requested)} gives the first one this name, --alias '*' any"
            raise Problem(404, f"{message} ({hint})", NOT_FOUND, parameter="model", code="model_not_found")
        return name


def shown_names(references: Sequence[str]) -> dict[str, str]:
    """Return the public name of each reference. A GGUF file is named without its full path, which is private: by its
    file name and as many folders as distinguish it from others.
    """
    tails = {one: _list_tails(one) for one in references}
    count = Counter(tail for its_tails in tails.values() for tail in its_tails)
    return {one: next(tail for tail in [*its_tails, one] if count[tail] <= 1) for one, its_tails in tails.items()}


def _list_tails(reference: str) -> list[str]:
    """Return `x.gguf`, `b/x.gguf` and `/a/b/x.gguf` for the last; the reference alone if it is not of a file."""
    path, at, recipe = reference.rpartition("@") if ".gguf@" in reference else (reference, "", "")
    if not path.endswith(".gguf") or ":" in path:
        return [reference]
    parts = PurePosixPath(path).parts
    return [str(PurePosixPath(*parts[-n:])) + at + recipe for n in range(1, len(parts) + 1)]


def unique_names(references: Mapping[str, str]) -> dict[str, str]:
    """Return the model's name by everything that identifies it: name, reference, unique part of a path."""
    others = [(other, name) for name, reference in references.items() for other in file_names(reference)]
    count = Counter(other for other, _ in others)
    clear = {other: name for other, name in others if count[other] == 1}
    exact = {one: name for name, reference in references.items() for one in (reference, name)}
    return clear | exact


def file_names(name: str) -> set[str]:
    """Return `x.gguf`, `x` and `models/x.gguf` for `./models/x.gguf`; the last as clients normalize it in URLs."""
    if not name.endswith(".gguf"):
        return set()
    path = PurePosixPath(name)
    return {path.name, path.stem, posixpath.normpath(name).lstrip("/")}
