"""A scripted rpc-server on the loopback interface, of llama.cpp's protocol."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from eaglelocal.probe.rpc_servers import (
    ALLOC_BUFFER,
    BUFFER_GET_BASE,
    DEVICE_COUNT,
    FREE_BUFFER,
    GET_DEVICE_MEMORY,
    GET_TENSOR,
    HELLO,
    SET_TENSOR,
    TENSOR,
)

Serve = Callable[[socket.socket], None]


def receive(connection: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        part = connection.recv(size - len(found))
        if not part:
            raise EOFError
        found += part
    return bytes(found)


class ScriptedRpc:
    """An rpc-server of the real protocol with one buffer; `version` and `memories` as a test wants them."""

    def __init__(self, version: tuple[int, int] = (7, 0), memories: tuple[tuple[int, int], ...] = ((3, 8),)) -> None:
        self.version, self.memories = version, memories
        self.buffer = b""
        self.is_freed = False

    def __call__(self, connection: socket.socket) -> None:
        while True:
            command, size = struct.unpack("<BQ", receive(connection, 9))
            reply = self.answer(command, receive(connection, size))
            if reply is not None:
                connection.sendall(struct.pack("<Q", len(reply)) + reply)

    def answer(self, command: int, request: bytes) -> bytes | None:
        if command == HELLO:
            return bytes([*self.version, 3, 0]) + bytes(24)
        if command == DEVICE_COUNT:
            return struct.pack("<I", len(self.memories))
        if command == GET_DEVICE_MEMORY:
            return struct.pack("<QQ", *self.memories[struct.unpack("<I", request)[0]])
        if command == ALLOC_BUFFER:
            return struct.pack("<QQ", 77, struct.unpack("<IQ", request)[1])
        if command == BUFFER_GET_BASE:
            return struct.pack("<Q", 4096)
        if command == SET_TENSOR:
            self.buffer = request[TENSOR.size + 9 :]
            return None
        if command == GET_TENSOR:
            return self.buffer
        assert (command, request) == (FREE_BUFFER, struct.pack("<Q", 77))
        self.is_freed = True
        return None


@contextmanager
def listening(serve: Serve) -> Iterator[str]:
    """Serve one client after the other, as rpc-server does, and give the address."""
    server = socket.create_server(("127.0.0.1", 0))
    done = threading.Event()

    def run() -> None:
        while not done.is_set():
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                try:
                    serve(connection)
                except (EOFError, OSError):
                    continue

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.getsockname()[1]}"
    finally:
        done.set()
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join(5)
