"""The interface through which chat, server, benchmarks and evaluation use an engine.

Implemented by `EngineClient` (an engine in its own process) and by the client of a running server. Failures of a
request are events (Failed), never exceptions; every accepted request ends with exactly one Finished or Failed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Protocol

from eaglelocal.core.events import (
    EngineInfo,
    EngineSnapshot,
    Failed,
    Finished,
    RequestEvent,
    Started,
    TextPiece,
    Tokens,
)
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import ChatRequest

OnEvent = Callable[[RequestEvent], None]


class Client(Protocol):
    """A thread-safe client of an engine."""

    @property
    def state(self) -> str:
        """Return loading, ready, restarting, failed or closed; for a running server also draining or disconnected."""

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


# ---- the answer to one request, from any Client
#
#     with stream(client, request) as answer:
#         for event in answer: ...  # Started, Tokens ..., Finished or Failed
#     reply = stream(client, request).result()
@dataclass(frozen=True, slots=True)
class CompleteAnswer:
    """A complete answer."""

    text: str
    pieces: tuple[TextPiece, ...]
    finished: Finished
    started: Started | None = None  # None when it was cancelled before it started

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(piece.token for piece in self.pieces)


class RequestStream:
    """The events of one request, for one reader. Leaving it as a context manager cancels a running request."""

    def __init__(self, client: Client, request_id: str) -> None:
        self.request_id = request_id
        self._client = client
        self._arrived: SimpleQueue[RequestEvent] = SimpleQueue()
        self._read: list[RequestEvent] = []

    @property
    def is_over(self) -> bool:
        """Return whether the last event has been read."""
        return bool(self._read) and isinstance(self._read[-1], (Finished, Failed))

    def on_event(self, event: RequestEvent) -> None:
        """Take an event; called on the client's thread."""
        self._arrived.put(event)

    def cancel(self) -> None:
        """Ask the engine to cancel the request; events still come until the last one has been read."""
        if not self.is_over:
            self._client.cancel(self.request_id)

    def __iter__(self) -> Iterator[RequestEvent]:
        return self

    def __next__(self) -> RequestEvent:
        if self.is_over:
            raise StopIteration
        event = self._arrived.get()
        self._read.append(event)
        return event

    def result(self) -> CompleteAnswer:
        """Read to the end and return the whole answer, earlier events included. Raises the error of a Failed event."""
        for _ in self:
            pass
        last = self._read[-1]
        if isinstance(last, Failed):
            raise last.error
        assert isinstance(last, Finished)
        started = next((event for event in self._read if isinstance(event, Started)), None)
        pieces = tuple(piece for event in self._read if isinstance(event, Tokens) for piece in event.pieces)
        return CompleteAnswer("".join(piece.text for piece in pieces) + last.text, pieces, last, started)

    def __enter__(self) -> RequestStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()


def stream(client: Client, request: ChatRequest) -> RequestStream:
    """Submit a request and return an iterator over its events."""
    answer = RequestStream(client, request.id)
    client.submit(request, answer.on_event)
    return answer
