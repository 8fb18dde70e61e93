"""The transport that uvicorn writes to: what it sends together. How it closes is tested over sockets."""

from __future__ import annotations

import asyncio
from typing import Any

from eaglelocal.server.http_protocol import MAX_JOINED_BYTES, LingeringTransport

HEAD = b"HTTP/1.1 200 \r\n\r\n"


class RecordingTransport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []
        self._is_closed = False

    def write(self, data: Any) -> None:
        if data:
            self.sent.append(bytes(data))

    def is_closing(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        self._is_closed = True


def send(*parts: bytes, closes: bool = False) -> list[bytes]:
    """Return what is sent of parts that are written at once."""

    async def write() -> list[bytes]:
        recording = RecordingTransport()
        transport = LingeringTransport(recording, lambda: False)
        for part in parts:
            transport.write(part)
        if closes:
            transport.close()
        await asyncio.sleep(0)
        return recording.sent

    return asyncio.run(write())


def test_a_head_is_sent_with_the_first_part() -> None:
    assert send(HEAD, b"first", b"", b"second") == [HEAD + b"first", b"second"]
    assert send(HEAD, b"first", b"", HEAD, b"second") == [HEAD + b"first", HEAD + b"second"]


def test_a_head_without_a_part_does_not_wait() -> None:
    assert send(HEAD) == [HEAD]
    assert send(HEAD, b"") == [HEAD]
    assert send(HEAD, closes=True) == [HEAD]
    assert send(HEAD, HEAD, b"first") == [HEAD, HEAD + b"first"]


def test_a_large_part_is_not_copied() -> None:
    large = bytes(MAX_JOINED_BYTES + 1)
    assert send(HEAD, large) == [HEAD, large]
