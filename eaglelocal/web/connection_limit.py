"""Limit the connections of the browser pages, as server/connections.py limits those of the server.

aiohttp waits without limit for the first request of a connection, and accepts any number of connections. Here a
request's head must arrive in time, and when all places are taken a new connection replaces one that has not sent a
request yet.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import cast

from eaglelocal.server.connections import Acceptor, ConnectionPlaces
from eaglelocal.server.descriptors import MAX_HANDSHAKES
from eaglelocal.server.http_protocol import HEAD_TIMEOUT_S

HEAD_END = b"\r\n\r\n"


class LimitedConnection(asyncio.Protocol):
    """A connection that has a place in `places` and forwards everything to aiohttp's protocol `inner`."""

    is_receiving = False  # pages send small requests, so a busy connection is never evicted

    def __init__(self, inner: asyncio.Protocol, places: ConnectionPlaces) -> None:
        self._inner, self._places = inner, places
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._tail = b""  # the last bytes of the head so far: its end may arrive in two parts

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._inner.connection_made(transport)
        peer = transport.get_extra_info("peername")
        if self._places.enter(self, peer[0] if peer else ""):
            self._timer = asyncio.get_running_loop().call_later(HEAD_TIMEOUT_S, self.evict)
        else:
            self.evict()

    def data_received(self, data: bytes) -> None:
        if self._timer is not None:
            self._await_head(data)
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_timer()
        self._places.leave(self)
        self._inner.connection_lost(exc)

    def evict(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _await_head(self, data: bytes) -> None:
        if HEAD_END in self._tail + data:
            self._end_timer()
            self._places.set_busy(self)
        self._tail = (self._tail + data)[-len(HEAD_END) :]

    def _end_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def accept_limited(
    listening: socket.socket, make_protocol: Callable[[], asyncio.Protocol], num_connections: int
) -> Acceptor:
    """Accept connections at a socket, so many at once."""
    places = ConnectionPlaces(num_connections)
    return Acceptor(listening, lambda: LimitedConnection(make_protocol(), places), ConnectionPlaces(MAX_HANDSHAKES))
