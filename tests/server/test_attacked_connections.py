"""Thousands of connections that ask for nothing, beside a bystander with a key of his own.

His answers are right, he waits no longer than in honest company of the same size, and the server's memory comes back.
"""

from __future__ import annotations

import resource
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from doubles.limited_server import LimitedServer, ServerSettings, limited_server
from doubles.raw_server_client import request
from doubles.timeouts import PATIENCE_S, wait_until

from eaglelocal import locations
from eaglelocal.server.server_certificate import choose_certificate

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads memory and descriptors in /proc")
ANNA, BEN = "key-of-anna-0123456", "key-of-ben-01234567"
KEYS = {"anna": ANNA, "ben": BEN, "this machine": "key-of-this-machine"}
MIB = 2**20
KEPT_BYTES = 48 * MIB  # of what an attack took: the allocator's, to be used again
BACK_S = 60.0
PACE_S = 0.05
NUM_HONEST = 400


@pytest.fixture(autouse=True)
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    monkeypatch.setattr(locations, "state_dir", lambda: tmp_path / "state")
    pair = choose_certificate("auto", "", "", ["127.0.0.1"])
    assert pair is not None
    return str(pair.certificate), str(pair.key)


@dataclass
class Bystander:
    """Asks with his own key, each time over a new connection."""

    server: LimitedServer
    waits_s: list[float] = field(default_factory=list)
    health_waits_s: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        said = {"messages": [{"role": "user", "content": "say x"}]}
        trust, headers = self.server.trust, {"x-api-key": BEN}
        while not self.over.wait(PACE_S):
            with httpx.Client(base_url=self.server.url, verify=trust, headers=headers, timeout=PATIENCE_S) as http:
                self.ask(self.waits_s, lambda: http.post("/v1/chat/completions", json=said), "x")
            with httpx.Client(base_url=self.server.url, verify=trust, timeout=PATIENCE_S) as http:
                self.ask(self.health_waits_s, lambda: http.get("/health"), "ok")

    def ask(self, waits_s: list[float], send: Callable[[], httpx.Response], expected: str) -> None:
        asked_at = time.monotonic()
        try:
            reply = send()
            if reply.status_code != 200 or f'"{expected}"' not in reply.text:
                self.faults.append(f"{reply.status_code} {reply.text[:80]}")
        except httpx.HTTPError as error:
            self.faults.append(repr(error))
        waits_s.append(time.monotonic() - asked_at)

    def take_waits(self) -> tuple[float, float]:
        """Return how long nine of ten waits for an answer and for /health were since the last call, at most."""
        seen = len(self.health_waits_s) + 2
        wait_until(lambda: len(self.health_waits_s) >= seen, "he has asked again")
        waits, self.waits_s = self.waits_s, []
        health_waits, self.health_waits_s = self.health_waits_s, []
        return sorted(waits)[len(waits) * 9 // 10], sorted(health_waits)[len(health_waits) * 9 // 10]


@contextmanager
def beside(server: LimitedServer) -> Iterator[Bystander]:
    bystander = Bystander(server)
    thread = threading.Thread(target=bystander.run)
    thread.start()
    try:
        yield bystander
    finally:
        bystander.over.set()
        thread.join()


@contextmanager
def opened(server: LimitedServer, number: int, begin: Callable[[socket.socket, int], socket.socket]) -> Iterator[None]:
    """Hold so many connections; `begin` sends the first bytes over each, by its number."""
    held: list[socket.socket] = []
    try:
        for index in range(number):
            with suppress(OSError):  # it was closed at once
                held.append(socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S))
                held[-1] = begin(held[-1], index)
        yield
    finally:
        for one in held:
            one.close()


def send_alternately(*choices: bytes) -> Callable[[socket.socket, int], socket.socket]:
    def begin(connection: socket.socket, index: int) -> socket.socket:
        connection.sendall(choices[index % len(choices)])
        return connection

    return begin


def client_hello() -> bytes:
    context = ssl.create_default_context()
    outgoing = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


def keep_honest_company(server: LimitedServer, number: int) -> None:
    """Send so many requests, each over a connection of its own, by a few at once."""
    trust = server.trust

    def ask(_: int) -> None:
        with httpx.Client(verify=trust, timeout=PATIENCE_S) as http:
            http.get(f"{server.url}/v1/models", headers={"x-api-key": ANNA}).raise_for_status()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(number)))


def withstand(server: LimitedServer, number: int, begin: Callable[[socket.socket, int], socket.socket]) -> None:
    """Open so many connections, and check what this is for a bystander and for the server's memory."""
    with beside(server) as bystander:
        bystander.take_waits()
        keep_honest_company(server, NUM_HONEST)
        honest_s, quiet_bytes = bystander.take_waits(), server.rss_bytes
        with opened(server, number, begin):
            attacked_s, attacked_bytes = bystander.take_waits(), server.rss_bytes
        closed_at = time.monotonic()
        while server.rss_bytes > quiet_bytes + KEPT_BYTES and time.monotonic() < closed_at + BACK_S:
            time.sleep(1)
        left_bytes = server.rss_bytes
        faults = bystander.faults
    sizes = ", ".join(f"{size / MIB:.0f}" for size in (quiet_bytes, attacked_bytes, left_bytes))
    print(f"\n{number}: honest {honest_s}, attacked {attacked_s} s for an answer and /health; {sizes} MiB")
    assert faults == []
    for honest, attacked in zip(honest_s, attacked_s, strict=True):
        assert attacked < 2 * honest + 1
    assert attacked_bytes < quiet_bytes + 2 * KEPT_BYTES
    assert left_bytes < quiet_bytes + KEPT_BYTES


@on_linux
@pytest.mark.slow
@pytest.mark.parametrize("descriptors", [256, 8192])
def test_handshakes_that_never_end(tmp_path: Path, certificate: tuple[str, str], descriptors: int) -> None:
    settings = ServerSettings(descriptors=(descriptors, descriptors), keys=KEYS, certificate=certificate)
    with limited_server(tmp_path / "log", settings) as server:
        withstand(server, 4000, send_alternately(client_hello(), b""))
        assert server.num_descriptors < descriptors


@on_linux
@pytest.mark.slow
def test_handshakes_after_which_nothing_is_asked(tmp_path: Path, certificate: tuple[str, str]) -> None:
    settings = ServerSettings(descriptors=(8192, 8192), keys=KEYS, certificate=certificate)
    context = ssl.create_default_context(cafile=certificate[0])
    with limited_server(tmp_path / "log", settings) as server:
        withstand(server, 1100, lambda connection, _: context.wrap_socket(connection, server_hostname="127.0.0.1"))


@on_linux
@pytest.mark.slow
def test_event_streams_of_one_key(tmp_path: Path) -> None:
    wanted = request("/v1/events", b"", f"x-api-key: {ANNA}", method="GET")
    with limited_server(tmp_path / "log", ServerSettings(descriptors=(8192, 8192), keys=KEYS)) as server:
        withstand(server, 1100, send_alternately(wanted))


@on_linux
@pytest.mark.slow
def test_connections_without_a_request(tmp_path: Path) -> None:
    with limited_server(tmp_path / "log", ServerSettings(descriptors=(8192, 8192), keys=KEYS)) as server:
        withstand(server, 4000, send_alternately(b"GET / HT", b""))
