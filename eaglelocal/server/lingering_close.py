"""A transport that closes so that the client still reads the answer, and sends an answer's head with its first part.

Closing a socket with unread data sends a reset, and then the client's system discards the answer. So after an answer
that comes before the end of its request (413, 401, 408, 400) only our side is closed; what still arrives is read and
dropped, up to a number of bytes and seconds.

uvicorn writes head and body one after the other: sent at once, they take one system call, and wake the client once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

LINGER_S = 10.0
MAX_DROPPED_BYTES = 256 * 2**20
MAX_JOINED_BYTES = 64 * 1024  # of a part that is copied to be sent with the head
HEAD = b"HTTP/1."  # how it begins; a part that does may wait as well, but no longer than for the next one


class LingeringTransport(asyncio.Transport):
    """The transport that uvicorn writes to. `has_unread`: returns whether the client may still be sending."""

    def __init__(self, transport: asyncio.Transport, has_unread: Callable[[], bool]) -> None:
        super().__init__()
        self._transport, self._has_unread = transport, has_unread
        self._timer: asyncio.TimerHandle | None = None
        self._num_dropped = 0
        self._head = b""  # not sent yet

    @property
    def is_lingering(self) -> bool:
        return self._timer is not None

    def close(self) -> None:
        if self._transport.is_closing() or self.is_lingering:
            return
        self._send_head()
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
            self.abort()

    def abort(self) -> None:
        self._transport.abort()

    def end(self) -> None:
        """Stop the timer, and forget the protocol: the connection is lost."""
        if self._timer is not None:
            self._timer.cancel()
        self._has_unread = bool

    def is_closing(self) -> bool:
        return self.is_lingering or self._transport.is_closing()

    def write(self, data: Any) -> None:
        """Write bytes. A head waits until the next ones come, or until the event loop has nothing else to do now."""
        if self.is_lingering:
            return
        if len(data) > MAX_JOINED_BYTES or data.startswith(HEAD):
            self._send_head()
        if data.startswith(HEAD):
            self._head = data
            asyncio.get_running_loop().call_soon(self._send_head)
        else:
            head, self._head = self._head, b""
            self._transport.write(head + data)

    def _send_head(self) -> None:
        head, self._head = self._head, b""
        if head and not self._transport.is_closing():
            self._transport.write(head)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        if not self.is_lingering:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def is_reading(self) -> bool:
        return self._transport.is_reading()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._transport.set_protocol(protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._transport.get_protocol()
