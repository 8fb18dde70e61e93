"""The interface through which chat, server, benchmarks and evaluation use an engine.

Implemented by `EngineClient` (an engine in its own process) and by the client of a running server. Failures of a
request are events (Failed), never exceptions; every accepted request ends with exactly one Finished or Failed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from eaglelocal.core.events import EngineInfo, EngineSnapshot, RequestEvent
from eaglelocal.core.request import ChatRequest

OnEvent = Callable[[RequestEvent], None]


class Client(Protocol):
    """A thread-safe client of an engine."""

    @property
    def state(self) -> str:
        """Return loading, ready, restarting, failed or closed; for a running server also disconnected."""

    def start(self) -> EngineInfo:
        """Wait until requests can be answered. Raises the EagleLocalError that prevents it."""

    def submit(self, request: ChatRequest, on_event: OnEvent) -> None:
        """Submit a request. `on_event` runs on a client thread, perhaps before this returns, and must be quick.

        Raises RequestError when a request with this id is still running.
        """

    def cancel(self, request_id: str) -> None:
        """Cancel a request; its Finished (or Failed) still comes. Unknown ids are ignored."""

    def snapshot(self) -> EngineSnapshot: ...

    def close(self) -> None: ...
