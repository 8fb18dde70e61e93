"""rpc-servers are asked with a time limit: a scripted one on the loopback interface answers, hangs, or is another."""

from __future__ import annotations

import socket
import struct

import pytest
from doubles.scripted_rpc import ScriptedRpc, Serve, listening, receive

from eaglelocal.errors import EngineError, LibraryError
from eaglelocal.probe.rpc_servers import (
    ALLOC_BUFFER,
    TENSOR,
    ask_rpc_server,
    find_rpc_servers,
)


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
