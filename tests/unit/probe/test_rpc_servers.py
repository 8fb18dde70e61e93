"""rpc-servers are asked with a time limit: a scripted one on the loopback interface answers, hangs, or is another."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from eaglelocal.errors import EngineError, LibraryError
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
    ask_rpc_server,
    find_rpc_servers,
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


def test_version_devices_and_link() -> None:
    scripted = ScriptedRpc(memories=((3, 8), (5, 6)))
    with listening(scripted) as address:
        server = ask_rpc_server(address)
    assert [(each.free_bytes, each.total_bytes) for each in server.devices] == [(3, 8), (5, 6)]
    assert server.address == address and server.latency_s > 0 and server.bytes_s > 0
    assert len(scripted.buffer) == 4 * 2**20 and scripted.is_freed


def test_the_layout_of_a_tensor_is_the_protocol_s() -> None:
    assert TENSOR.size == 296  # sizeof(rpc_tensor)


def hang(connection: socket.socket) -> None:
    receive(connection, 10**9)


def speak_http(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")


def say_half(connection: socket.socket) -> None:
    connection.sendall(struct.pack("<Q", 28) + b"\7")
    hang(connection)


def refuse_memory(connection: socket.socket) -> None:
    class Full(ScriptedRpc):
        def answer(self, command: int, request: bytes) -> bytes | None:
            return struct.pack("<QQ", 0, 0) if command == ALLOC_BUFFER else super().answer(command, request)

    Full()(connection)


@pytest.mark.parametrize(
    ("serve", "said"),
    [
        (hang, "did not answer in 0 s: it may be serving another program"),
        (say_half, "did not answer in"),
        (speak_http, "is no rpc-server"),
        (lambda connection: None, "is no rpc-server"),
        (ScriptedRpc(version=(8, 0)), "speaks protocol 8.0.3, llama.cpp here 7.0"),
        (ScriptedRpc(version=(7, 1)), "speaks protocol 7.1.3"),
        (ScriptedRpc(memories=()), "has 0 devices"),
        (refuse_memory, "has no memory left"),
    ],
)
def test_what_is_wrong_is_said_with_the_address(serve: Serve, said: str) -> None:
    with listening(serve) as address, pytest.raises(EngineError) as caught:
        ask_rpc_server(address, 0.4)
    assert said in caught.value.message and address in caught.value.message and caught.value.hint


@pytest.mark.parametrize("address", ["127.0.0.1:1", "no-such-host.invalid:50052"])
def test_a_server_that_is_away(address: str) -> None:
    with pytest.raises(EngineError, match=f"cannot reach the rpc-server {address}"):
        ask_rpc_server(address)


def test_a_build_without_rpc_is_said_before_anything_is_asked() -> None:
    with pytest.raises(LibraryError, match="built without RPC") as caught:
        find_rpc_servers(["127.0.0.1:1"], ["cpu", "cuda"])
    assert "-DGGML_RPC=on" in caught.value.hint
    assert find_rpc_servers([], ["cpu"]) == ()
