"""Ask llama.cpp's rpc-servers for version, devices and memory, and measure the link to them.

Speaks the protocol itself, with a time limit: llama.cpp would wait forever for a silent server, and abort the process
if a server is unreachable. A server serves one client at a time, so no other client can ask while an engine uses it.
The protocol (ggml-rpc.cpp): one byte of command, eight of size, the request; the reply is eight of size, and itself.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from eaglelocal.core.records import dataclass
from eaglelocal.errors import LibraryError, RpcServerError

TIMEOUT_S = 4.0
PROTOCOL = (7, 0)  # major: must be equal; minor: at most this, as in the pinned llama.cpp
ALLOC_BUFFER, FREE_BUFFER, BUFFER_GET_BASE, SET_TENSOR, GET_TENSOR = 0, 4, 3, 6, 8
GET_DEVICE_MEMORY, HELLO, DEVICE_COUNT = 11, 14, 15
CAPS_BYTES = 24  # of the transport; zeros: plain TCP
NUM_PINGS = 5
MEASURED_BYTES = 4 * 2**20
MAX_DEVICES = 16  # of llama.cpp
TENSOR = struct.Struct("<QIQ4I4II16ii10QQQQ64si")  # rpc_tensor
TYPE_I8 = 24  # ggml_type
REBUILD = 'CMAKE_ARGS="-DGGML_RPC=on" pip install --no-cache-dir --force-reinstall --no-deps llama-cpp-python==0.3.36'
HINT = "start `rpc-server` there, with -H and the address of that machine, from the same llama.cpp as here"


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcDevice:
    """A device of an rpc-server, in bytes."""

    free_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcServer:
    """An rpc-server as it was asked.

    latency_s  of a request and its reply, the best of several
    bytes_s    of the link, the slower of both directions
    """

    address: str
    devices: tuple[RpcDevice, ...]
    latency_s: float
    bytes_s: float


def find_rpc_servers(addresses: Sequence[str], backends: Collection[str]) -> tuple[RpcServer, ...]:
    """Return the servers at these addresses, asked one after the other.

    backends  what llama.cpp here was built with

    Raises LibraryError if llama.cpp here was built without RPC, and the errors of `ask_rpc_server`.
    """
    if addresses and "rpc" not in backends:
        raise LibraryError("--rpc: llama.cpp here was built without RPC", hint=REBUILD)
    return tuple(map(ask_rpc_server, addresses))


def ask_rpc_server(address: str, timeout_s: float = TIMEOUT_S) -> RpcServer:
    """Ask a server at HOST:PORT for its properties, and measure the speed of the link.

    Raises RpcServerError if it does not answer in time, or is not an rpc-server with a protocol that this llama.cpp
    speaks.
    """
    with _explaining(address, timeout_s):
        host, _, port = address.partition(":")
        with socket.create_connection((host, int(port)), timeout_s) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client = _Client(connection, address, time.monotonic() + timeout_s)
            client.check_version()
            devices = client.read_devices()
            latency_s = min(client.measure_ping_s() for _ in range(NUM_PINGS))
            return RpcServer(
                address=address, devices=devices, latency_s=latency_s, bytes_s=client.measure_bytes_s(latency_s)
            )


@contextmanager
def _explaining(address: str, timeout_s: float) -> Iterator[None]:
    """Turn failures of the connection into errors that name the server."""
    try:
        yield
    except TimeoutError:
        text = f"the rpc-server {address} did not answer in {timeout_s:.0f} s: it may be serving another program"
        raise RpcServerError(text, hint=HINT) from None
    except (ConnectionResetError, BrokenPipeError, EOFError):
        raise RpcServerError(f"{address} hung up: it is no rpc-server of this llama.cpp", hint=HINT) from None
    except OSError as error:
        raise RpcServerError(f"cannot reach the rpc-server {address}: {error.strerror or error}", hint=HINT) from None


class _Client:
    """One connection to a server, whose calls must all end by `deadline` (monotonic seconds)."""

    def __init__(self, connection: socket.socket, address: str, deadline: float) -> None:
        self._connection, self._address, self._deadline = connection, address, deadline

    def check_version(self) -> None:
        """Raise RpcServerError for another protocol than llama.cpp's here, on which it would abort."""
        major, minor, patch = struct.unpack_from("<BBB", self._call(HELLO, bytes(CAPS_BYTES), 4 + CAPS_BYTES))
        if major != PROTOCOL[0] or minor > PROTOCOL[1]:
            ours = ".".join(map(str, PROTOCOL))
            text = f"the rpc-server {self._address} speaks protocol {major}.{minor}.{patch}, llama.cpp here {ours}"
            raise RpcServerError(text, hint=HINT)

    def read_devices(self) -> tuple[RpcDevice, ...]:
        (count,) = struct.unpack("<I", self._call(DEVICE_COUNT, b"", 4))
        if not 1 <= count <= MAX_DEVICES:
            raise RpcServerError(f"the rpc-server {self._address} has {count} devices", hint=HINT)
        memories = (struct.unpack("<QQ", self._call(GET_DEVICE_MEMORY, struct.pack("<I", i), 16)) for i in range(count))
        return tuple(RpcDevice(free_bytes=free, total_bytes=total) for free, total in memories)

    def measure_ping_s(self) -> float:
        """Return the seconds of a short request and its reply."""
        started_at = time.perf_counter()
        self._call(DEVICE_COUNT, b"", 4)
        return time.perf_counter() - started_at

    def measure_bytes_s(self, latency_s: float) -> float:
        """Return the slower of sending and receiving a buffer. Raises RpcServerError if the server lacks memory."""
        handle, size = struct.unpack("<QQ", self._call(ALLOC_BUFFER, struct.pack("<IQ", 0, MEASURED_BYTES), 16))
        if not handle or size < MEASURED_BYTES:
            raise RpcServerError(f"the rpc-server {self._address} has no memory left", hint="free memory there")
        (base,) = struct.unpack("<Q", self._call(BUFFER_GET_BASE, struct.pack("<Q", handle), 8))
        tensor = TENSOR.pack(
            1, TYPE_I8, handle, MEASURED_BYTES, 1, 1, 1, 1, *[MEASURED_BYTES] * 3, 0, *[0] * 16, 0, *[0] * 10,
            0, 0, base, b"", 0,
        )  # fmt: skip
        started_at = time.perf_counter()
        self._send(SET_TENSOR, tensor + struct.pack("<BQ", 0, 0) + bytes(MEASURED_BYTES))
        self._call(DEVICE_COUNT, b"", 4)  # setting has no reply
        set_s = time.perf_counter() - started_at - latency_s
        started_at = time.perf_counter()
        self._call(GET_TENSOR, tensor + struct.pack("<QQ", 0, MEASURED_BYTES), MEASURED_BYTES)
        get_s = time.perf_counter() - started_at - latency_s
        self._send(FREE_BUFFER, struct.pack("<Q", handle))
        return MEASURED_BYTES / max(set_s, get_s, 1e-6)

    def _call(self, command: int, request: bytes, num_bytes: int) -> bytes:
        """Return the reply of `num_bytes`. Raises RpcServerError for another size, EOFError at the end."""
        self._send(command, request)
        (size,) = struct.unpack("<Q", self._receive(8))
        if size != num_bytes:
            raise RpcServerError(f"{self._address} is no rpc-server: its reply has {size} bytes", hint=HINT)
        return self._receive(num_bytes)

    def _send(self, command: int, request: bytes) -> None:
        self._limit_time()
        self._connection.sendall(struct.pack("<BQ", command, len(request)) + request)

    def _receive(self, num_bytes: int) -> bytes:
        received = bytearray()
        while len(received) < num_bytes:
            self._limit_time()
            part = self._connection.recv(min(num_bytes - len(received), 2**20))
            if not part:
                raise EOFError
            received += part
        return bytes(received)

    def _limit_time(self) -> None:
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._connection.settimeout(left_s)
