"""A model to be loaded, and the requests that wait for it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator

from eaglelocal.server.loaded_models import LoadedModel


class PendingLoad:
    """The task that loads a model, and the requests that wait for it.

    Without waiting requests a load that has not begun is cancelled. One that has begun goes on: it cannot be
    interrupted, and its engine must not be lost.
    """

    def __init__(self, load: Callable[[PendingLoad], Coroutine[None, None, None]]) -> None:
        self._has_begun = False
        self._waiting: set[asyncio.Future[LoadedModel]] = set()
        self._task = asyncio.create_task(load(self))

    @property
    def is_needed(self) -> bool:
        return self._has_begun or bool(self._waiting)

    @contextlib.contextmanager
    def begin(self) -> Iterator[None]:
        """Count the load as begun while the block runs."""
        self._has_begun = True
        try:
            yield
        finally:
            self._has_begun = False

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
        """Give the model to all waiting requests."""
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
