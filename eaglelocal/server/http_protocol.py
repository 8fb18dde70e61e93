"""uvicorn's HTTP protocol with additions.

These are a timeout for a request's head (slow loris), a bound on the connections, with places kept for /health, errors
in our format for invalid HTTP, answers that reach the client even if sent before its request has ended, and detection
of a disconnect even if data was sent after the request.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any, cast

import h11
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from eaglelocal.server.connections import ConnectionPlaces
from eaglelocal.server.http_errors import Problem, unavailable
from eaglelocal.server.middleware import OPEN_PATHS, refusal

HEAD_TIMEOUT_S = 15.0
MAX_PIPELINED_BYTES = 64 * 1024  # bytes of pipelined requests that may arrive before the current one is answered

_log = logging.getLogger("eaglelocal.server")


class Protocol(H11Protocol):
    """An HTTP connection, which closes if a request's head takes too long after the connection or its first byte."""

    _head_timer: asyncio.TimerHandle | None = None

    def __init__(self, *arguments: Any, places: ConnectionPlaces, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._places = places
        self._serve, self.app = self.app, self._serve_or_refuse

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # uvicorn narrows it too
        self._lingering = LingeringTransport(transport, lambda: self._has_unread)
        super().connection_made(cast(asyncio.Transport, self._lingering))
        if self._places.enter(self, self.client[0] if self.client else ""):
            self._start_head_timer()
        else:
            self._send_error(all_in_use())

    def data_received(self, data: bytes) -> None:
        if self._lingering.is_closing():
            self._lingering.drop(len(data))
            return
        if self._is_between_requests and self._head_timer is None:
            self._start_head_timer()
        if self._is_between_requests and self.conn.their_state is h11.SEND_BODY:  # answered already
            self._lingering.drop(len(data))
        super().data_received(data)
        if not self._is_between_requests:
            self._stop_head_timer()
            self._resume_reading()

    def on_response_complete(self) -> None:
        self._places.set_idle(self)
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        self._places.leave(self)
        self._lingering.end()
        self.app = self._serve  # otherwise a cycle keeps this object and TLS's buffers
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Close at shutdown; called by uvicorn."""
        if self._lingering.is_lingering:
            self._lingering.abort()
        elif not self._lingering.is_closing():
            super().shutdown()

    def send_400_response(self, msg: str) -> None:
        """Answer invalid HTTP; called by uvicorn."""
        self._send_error(Problem(400, "this is not a valid HTTP request", code="invalid_http"))

    @property
    def is_receiving(self) -> bool:
        return not self._is_between_requests and self.conn.their_state is h11.SEND_BODY

    def evict(self) -> None:
        """Abort the connection, because another one needs the place."""
        self._lingering.abort()

    async def _serve_or_refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to the application; if all connections are busy, only a request for /health."""
        if self._places.set_busy(self) or scope["path"] in OPEN_PATHS:
            await self._serve(scope, receive, send)
        else:
            _log.warning("a request was refused: all connections are in use")
            await refusal(scope, all_in_use(), close=True)(scope, receive, send)

    def _send_error(self, problem: Problem) -> None:
        """Send an error without the application, for a request that cannot reach it; then close."""
        fields = {"status": problem.status, "reason": problem.message, "code": problem.code}
        _log.warning("a connection was refused: %d", problem.status, extra=fields)
        body = json.dumps(problem.openai_body()).encode()
        head = [("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close")]
        response = h11.Response(status_code=problem.status, headers=[*head, *problem.headers.items()])
        for event in (response, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _should_upgrade(self) -> bool:
        """Return False: no upgrades (Java's clients offer h2c with every request, and uvicorn would warn each time)."""
        return False

    def _resume_reading(self) -> None:
        """Go on reading: uvicorn pauses when data follows a request, and would not notice a disconnect."""
        has_request_ended = self.conn.their_state is not h11.SEND_BODY
        if has_request_ended and len(self.conn.trailing_data[0]) <= MAX_PIPELINED_BYTES:
            self.flow.resume_reading()

    @property
    def _has_unread(self) -> bool:
        """Return whether the client may still be sending data that will not be read."""
        return self.conn.their_state in (h11.SEND_BODY, h11.ERROR) or bool(self.conn.trailing_data[0])

    @property
    def _is_between_requests(self) -> bool:
        cycle = cast(Any, self.cycle)
        return cycle is None or cycle.response_complete

    def _start_head_timer(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._time_out_head)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _time_out_head(self) -> None:
        self._head_timer = None
        self.transport.close()


def all_in_use() -> Problem:
    return unavailable("all connections of this server are in use", retry_after_s=2)


# ---- lingering close: a transport that lets the client read the answer before it closes
#
# Closing a socket with unread data sends a reset, and then the client's system discards the answer. So after an answer
# that comes before the end of its request (413, 401, 408, 400) only our side is closed; further input is read and
# dropped, up to a number of bytes and seconds.
LINGER_S = 10.0
MAX_DROPPED_BYTES = 256 * 2**20


class LingeringTransport:
    """The transport that uvicorn writes to. `has_unread`: returns whether the client may still be sending."""

    def __init__(self, transport: asyncio.Transport, has_unread: Callable[[], bool]) -> None:
        self._transport, self._has_unread = transport, has_unread
        self._timer: asyncio.TimerHandle | None = None
        self._num_dropped = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    @property
    def is_lingering(self) -> bool:
        return self._timer is not None

    def close(self) -> None:
        if self._transport.is_closing() or self.is_lingering:
            return
        if not (self._has_unread() and self._transport.can_write_eof()):
            self._transport.close()
            return
        self._timer = asyncio.get_running_loop().call_later(LINGER_S, self._transport.abort)
        self._transport.write_eof()  # after all pending writes
        self._transport.resume_reading()

    def drop(self, num_bytes: int) -> None:
        """Count received bytes that are dropped; abort above MAX_DROPPED_BYTES."""
        self._num_dropped += num_bytes
        if self._num_dropped > MAX_DROPPED_BYTES:
            self._transport.abort()

    def end(self) -> None:
        """Stop the timer, and forget the protocol, because the connection is lost."""
        if self._timer is not None:
            self._timer.cancel()
        self._has_unread = bool

    def is_closing(self) -> bool:
        return self.is_lingering or self._transport.is_closing()

    def write(self, data: Any) -> None:
        if not self.is_lingering:
            self._transport.write(data)

    def pause_reading(self) -> None:
        if not self.is_lingering:
            self._transport.pause_reading()
