"""The one interface through which chat, server, bench and evaluation talk to an engine.

`EngineClient` implements it over the engine's own process; a client of a running server implements it
too. Failures of a request are events (Failed), never exceptions; every accepted request ends with
exactly one Finished or Failed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from eaglelocal.core.events import EngineInfo, EngineSnapshot, RequestEvent
from eaglelocal.core.request import ChatRequest

OnEvent = Callable[[RequestEvent], None]


class Client(Protocol):
    """Safe from any thread."""

    @property
    def state(self) -> str:
        """loading, ready, restarting, failed, closed; of a server that was joined also disconnected."""

    def start(self) -> EngineInfo:
        """Wait until questions can be answered. Raises the EagleLocalError that prevents it."""

    def submit(self, request: ChatRequest, on_event: OnEvent) -> None:
        """Ask. `on_event` runs on a thread of the client and must be quick; it may run before this returns.

        Raises RequestError when a request with this id is still running.
        """

    def cancel(self, request_id: str) -> None:
        """End a request early; its Finished (or Failed) still comes. Unknown ids are ignored."""

    def snapshot(self) -> EngineSnapshot: ...

    def close(self) -> None: ...
