"""A server with few file descriptors and many silent connections; engines that are given up."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
import sys
from pathlib import Path

import pytest
from doubles.limited_server import ServerSettings, limited_server
from doubles.raw_server_client import connected
from doubles.timeouts import PATIENCE_S, PROMPTLY_S
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.cli.output import Output
from eaglelocal.cli.serve_log import MAX_REPEATS, REPEAT_S, RepeatFilter, log_to
from eaglelocal.server.connections import (
    Acceptor,
    ConnectionPlaces,
    find_network,
    max_connections,
    max_handshakes,
    num_kept,
)

pytestmark = pytest.mark.full

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="counts descriptors in /proc")


@on_linux
def test_idle_sockets_beyond_the_limit_keep_no_client_out_and_fill_no_log(tmp_path: Path) -> None:
    with (
        limited_server(tmp_path / "log", ServerSettings(descriptors=(128, 128))) as server,
        contextlib.ExitStack() as held,
    ):
        for _ in range(400):
            held.enter_context(connected(server.port))
        assert server.num_descriptors < 128
        assert server.ask("say x").status_code == 200
        for number in (signal.SIGKILL, signal.SIGABRT):
            os.kill(server.engine_pid, number)
            for _ in range(400):  # and it goes on
                held.enter_context(connected(server.port))
            assert server.ask(f"say {number}").status_code == 200
        assert server.num_descriptors < 128
        reply = server.log.read_text()
    assert len(reply.splitlines()) < 30, reply
    assert "Too many open files" not in reply


@on_linux
def test_the_soft_limit_is_raised(tmp_path: Path) -> None:
    with (
        limited_server(tmp_path / "log", ServerSettings(descriptors=(80, 1024))) as server,
        contextlib.ExitStack() as held,
    ):
        for _ in range(200):
            held.enter_context(connected(server.port))
        assert server.ask("say x").status_code == 200
        assert server.num_descriptors > 200


def test_a_server_whose_engine_was_given_up_ends_with_a_status(tmp_path: Path) -> None:
    """So that systemd starts it again."""
    with limited_server(tmp_path / "log", ServerSettings(max_crashes=1)) as server:
        assert server.ask("crash").status_code == 500
        assert server.process.wait(PATIENCE_S) == 1
        assert "all engines have failed: actor: the engine failed 1 times" in server.log.read_text()


def test_connections_leave_descriptors_for_the_rest() -> None:
    assert [max_connections(limit) for limit in (20, 128, 1024, 65536)] == [8, 64, 960, 1024]
    assert [(max_handshakes(number), num_kept(number)) for number in (8, 64, 1024)] == [(2, 2), (16, 8), (128, 8)]


class Caller:
    """A connection that is only counted."""

    def __init__(self, *, is_receiving: bool = False) -> None:
        self.is_receiving = is_receiving
        self.is_evicted = False

    def evict(self) -> None:
        self.is_evicted = True


HERE, THERE = "192.168.1.7", "192.168.1.8"


def test_the_longest_idle_connection_is_closed_first() -> None:
    places = ConnectionPlaces(3)
    first, second, third, newcomer = callers = [Caller() for _ in range(4)]
    for one in callers[:3]:
        assert places.enter(one, HERE)
    places.set_busy(first)
    places.set_idle(first)  # behind the others now
    places.set_busy(third)
    assert places.enter(newcomer, HERE)
    assert [one.is_evicted for one in callers] == [False, True, False, False]
    places.leave(second)  # as it does when it is closed
    assert len(places) == 3


@given(others=st.integers(0, 12), is_first=st.booleans())
def test_one_address_does_not_displace_another(others: int, is_first: bool) -> None:
    places, mine = ConnectionPlaces(4), Caller()
    if is_first:
        places.enter(mine, HERE)
    for _ in range(others + 3):
        assert places.enter(Caller(), THERE)
    if not is_first:
        assert places.enter(mine, HERE)
        for _ in range(others):
            assert places.enter(Caller(), THERE)
    assert not mine.is_evicted
    assert len(places) == 4


def test_a_network_has_its_own_bound() -> None:
    places, callers, mine = ConnectionPlaces(9, max_per_network=2), [Caller() for _ in range(3)], Caller()
    assert places.enter(mine, THERE) and all(places.enter(one, HERE) for one in callers)
    assert [one.is_evicted for one in (*callers, mine)] == [True, False, False, False]
    places.set_busy(callers[1])  # is counted no more
    assert places.enter(Caller(), HERE) and not callers[2].is_evicted


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.168.1.7", "192.168.1.7"),
        ("::ffff:192.168.1.7", "192.168.1.7"),
        ("2001:db8:0:1:a:b:c:d", "2001:db8:0:1::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_one_caller_may_have_many_addresses(address: str, network: str) -> None:
    assert find_network(address) == network


def test_a_connection_with_a_running_answer_is_never_closed() -> None:
    places = ConnectionPlaces(2)
    answered, sending = Caller(), Caller(is_receiving=True)
    for one in (answered, sending):
        places.enter(one, HERE)
        assert places.set_busy(one)
    newcomer = Caller()
    assert places.enter(newcomer, HERE)
    assert (answered.is_evicted, sending.is_evicted) == (False, True)
    places.set_busy(newcomer)
    assert not places.enter(Caller(), HERE)


def test_some_places_are_kept_for_requests_that_are_always_answered() -> None:
    places = ConnectionPlaces(4, num_kept=2)
    callers = [Caller() for _ in range(4)]
    for one in callers:
        assert places.enter(one, HERE)
    assert [places.set_busy(one) for one in callers[:3]] == [True, True, False]
    places.set_idle(callers[0])
    assert places.set_busy(callers[2])
    callers[1].is_receiving = True
    assert places.set_busy(callers[3])
    assert callers[1].is_evicted


class Exhausted(socket.socket):
    """A listening socket for whose connections there is no descriptor, twice."""

    failures = 2

    def accept(self) -> tuple[socket.socket, object]:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().accept()


def test_without_a_descriptor_it_is_soon_tried_again() -> None:
    async def exchange_a_word() -> bytes:
        with Exhausted() as listening:
            listening.bind(("127.0.0.1", 0))
            listening.listen()
            listening.setblocking(False)
            acceptor = Acceptor(listening, Greeting, ConnectionPlaces(4))
            reader, writer = await asyncio.open_connection(*listening.getsockname())
            async with asyncio.timeout(PROMPTLY_S):
                said = await reader.read()
            writer.close()
            acceptor.close()
            await acceptor.wait_closed()
            return said

    assert asyncio.run(exchange_a_word()) == b"hello"


class Greeting(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(b"hello")
        transport.close()


class Messages(Output):
    """Only what is said."""

    def __init__(self) -> None:
        super().__init__(stdout=sys.stdout, stderr=sys.stderr, environ={})
        self.said: list[str] = []

    def message(self, text: str = "") -> None:
        self.said.append(text)


def test_equal_warnings_are_thinned_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    log = logging.getLogger("asyncio")
    monkeypatch.setattr(log, "handlers", [])
    monkeypatch.setattr(log, "propagate", False)
    output = Messages()
    before = {name: (logging.getLogger(name).handlers, logging.getLogger(name).propagate) for name in NAMES}
    try:
        log_to(output, None)
        log.handlers[0].filters[:] = [RepeatFilter(lambda: now[0])]
        for round_s in (0.0, REPEAT_S, 2 * REPEAT_S):
            now[0] = round_s
            for n in range(1000):
                log.error("socket.accept() out of system resource %d", n)
        crashes = logging.getLogger("eaglelocal.worker.supervisor")
        for n in range(10):
            crashes.error("crash %d", n)
    finally:
        for name, (handlers, propagate) in before.items():
            logging.getLogger(name).handlers, logging.getLogger(name).propagate = handlers, propagate
    assert len(output.said) == 3 * MAX_REPEATS + 10
    assert sum(f"({1000 - MAX_REPEATS} more like this in {REPEAT_S:g} s)" in line for line in output.said) == 2


NAMES = ("eaglelocal", "uvicorn.error", "asyncio")


@on_linux
def test_an_idle_socket_is_closed_after_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from doubles.running_server import directed, served

    from eaglelocal.server import http_protocol

    monkeypatch.setattr(http_protocol, "HEAD_TIMEOUT_S", 0.3)
    with served(directed()) as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as sock:
            assert sock.recv(1) == b""
        assert server.ask("say x").status_code == 200
