"""uvicorn's HTTP protocol with what it lacks: a request's head must arrive in time (slow loris), what is no HTTP is
refused in the same shape as everything else, and who hangs up is noticed, whatever was sent behind the request.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from eaglelocal.server.errors import Problem

HEAD_TIMEOUT_S = 15.0
MAX_AHEAD_BYTES = 64 * 1024  # of requests that come before the one before is answered


class Protocol(H11Protocol):
    """Closes a connection that has begun to speak, or was opened, and does not finish a request's head."""

    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # uvicorn narrows it too
        super().connection_made(transport)
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        if self._is_between_requests and self._head_timer is None:
            self._watch_head()
        super().data_received(data)
        if not self._is_between_requests:
            self._unwatch_head()
            self._read_on()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch_head()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn for what is no HTTP."""
        body = json.dumps(Problem(400, "this is no valid HTTP request", code="invalid_http").body()).encode()
        head = [("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close")]
        for event in (h11.Response(status_code=400, headers=head), h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _should_upgrade(self) -> bool:
        """To no other protocol (Java's clients offer h2c with every request); uvicorn would warn of each offer."""
        return False

    def _read_on(self) -> None:
        """uvicorn stops where a request is followed by anything, and would not see the end of the connection."""
        is_heard = self.conn.their_state is not h11.SEND_BODY
        if is_heard and len(self.conn.trailing_data[0]) <= MAX_AHEAD_BYTES:
            self.flow.resume_reading()

    @property
    def _is_between_requests(self) -> bool:
        cycle = cast(Any, self.cycle)
        return cycle is None or cycle.response_complete

    def _watch_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._give_up)

    def _unwatch_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _give_up(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self.transport.close()
