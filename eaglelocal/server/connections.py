"""Accept a server's connections, and limit their number: if all places are taken, a new one replaces an idle one.

So idle sockets cannot keep others out: the address with the most idle connections loses the one that has been idle
longest, or else the one that has been sending a body longest. A TLS handshake holds a place of a separate kind, from
accept on. A new connection is refused only if every other one is being answered. Independent of HTTP.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import ssl
from asyncio import sslproto
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Protocol

HANDSHAKE_TIMEOUT_S = 15.0
ACCEPT_RETRY_S = 0.1  # after a failed accept
TLS_READ_BYTES = 16 * 1024  # held by each connection: the text of the largest TLS record
IPV6_NETWORK_BITS = 64  # one subscriber has all addresses of such a network

_log = logging.getLogger("eaglelocal.server")


class PlacedConnection(Protocol):
    """The part of a connection that ConnectionPlaces uses."""

    @property
    def is_receiving(self) -> bool:
        """Return whether the body of its request is still arriving."""

    def evict(self) -> None:
        """Close it at once. It calls `leave` when it is closed."""


class ConnectionPlaces:
    """The open connections, in the order in which they became idle or busy, with their networks. For one event loop.

    num_kept         places for connections that are answered even when all others are busy (see set_busy)
    max_per_network  idle ones of a network; a further one replaces its oldest. None: as many as there are places
    """

    def __init__(self, max_connections: int, *, num_kept: int = 0, max_per_network: int | None = None) -> None:
        self._max_connections, self._num_kept = max_connections, num_kept
        self._max_per_network = max_connections if max_per_network is None else max_per_network
        self._idle: dict[PlacedConnection, str] = {}
        self._busy: dict[PlacedConnection, str] = {}

    def __len__(self) -> int:
        return len(self._idle) + len(self._busy)

    def enter(self, connection: PlacedConnection, address: str) -> bool:
        """Give a new connection a place, as idle; return False if all connections are being answered."""
        network = find_network(address)
        own = {one: its_network for one, its_network in self._idle.items() if its_network == network}
        if len(own) >= self._max_per_network:
            self._evict(own)
        if len(self) >= self._max_connections and not (self._evict(self._idle) or self._evict(self._receiving())):
            return False
        self._idle[connection] = network
        return True

    def set_busy(self, connection: PlacedConnection) -> bool:
        """Mark a connection as busy: the head of its request has arrived.

        Return whether it may be answered: False if only the reserved places are left.
        """
        if connection in self._idle:
            self._busy[connection] = self._idle.pop(connection)
        return len(self._busy) <= self._max_connections - self._num_kept or self._evict(self._receiving(connection))

    def set_idle(self, connection: PlacedConnection) -> None:
        """Mark a connection as idle: its answer is complete."""
        if connection in self._busy:
            self._idle[connection] = self._busy.pop(connection)

    def leave(self, connection: PlacedConnection) -> None:
        self._idle.pop(connection, None)
        self._busy.pop(connection, None)

    def evict_idle(self) -> None:
        while self._evict(self._idle):
            pass

    def _receiving(self, besides: PlacedConnection | None = None) -> Mapping[PlacedConnection, str]:
        return {one: network for one, network in self._busy.items() if one.is_receiving and one is not besides}

    def _evict(self, connections: Mapping[PlacedConnection, str]) -> bool:
        """Close the first connection of the network that has the most of these; return False if there are none."""
        for network, _ in Counter(connections.values()).most_common(1):
            victim = next(one for one, its_network in connections.items() if its_network == network)
            self.leave(victim)
            victim.evict()
            return True
        return False


def find_network(address: str) -> str:
    """Return the network that counts as one caller: an IPv4 address, or an IPv6 network.

    >>> find_network("192.168.1.7"), find_network("::ffff:192.168.1.7"), find_network("2001:db8:0:1:a:b:c:d%eth0")
    ('192.168.1.7', '192.168.1.7', '2001:db8:0:1::/64')
    """
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, IPV6_NETWORK_BITS), strict=False))


class Opening:
    """An accepted socket until its protocol takes over: during the TLS handshake, if there is one."""

    is_receiving = False

    def __init__(self, accepted: socket.socket) -> None:
        self.socket = accepted

    def evict(self) -> None:
        """End the connection: the handshake fails at the end of its input."""
        with suppress(OSError):  # it has ended by itself
            self.socket.shutdown(socket.SHUT_RDWR)


class Acceptor:
    """Accepts connections at a socket while the event loop runs, and opens them.

    asyncio's own servers do not bound handshakes, and accept nothing for a second when descriptors are short.
    """

    def __init__(
        self,
        listening: socket.socket,
        make_protocol: Callable[[], asyncio.BaseProtocol],
        openings: ConnectionPlaces,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`openings` are the places of connections that are being opened."""
        self._listening, self._make_protocol, self._openings, self._tls = listening, make_protocol, openings, tls
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None
        sslproto.SSLProtocol.max_size = TLS_READ_BYTES  # 256 KiB by default
        self._loop.add_reader(listening, self._accept)

    def close(self) -> None:
        """Accept no more connections, and close the ones that are being opened."""
        self._loop.remove_reader(self._listening)
        if self._retry is not None:
            self._retry.cancel()
        self._openings.evict_idle()

    async def wait_closed(self) -> None:
        await asyncio.gather(*self._tasks)

    def _accept(self) -> None:
        for _ in range(ACCEPT_BATCH):
            try:
                accepted, address = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptor or memory is left
                _log.warning("no connection can be accepted: %s", error.strerror)
                self._loop.remove_reader(self._listening)
                self._retry = self._loop.call_later(
                    ACCEPT_RETRY_S, self._loop.add_reader, self._listening, self._accept
                )
                return
            opening = Opening(accepted)
            self._openings.enter(opening, address[0])
            task = self._loop.create_task(self._open(opening))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _open(self, opening: Opening) -> None:
        timeout_s = HANDSHAKE_TIMEOUT_S if self._tls else None
        try:
            await self._loop.connect_accepted_socket(
                self._make_protocol, opening.socket, ssl=self._tls, ssl_handshake_timeout=timeout_s
            )
        except OSError as error:  # also of TLS: the client did not speak TLS, or was too slow
            _log.debug("a connection was not opened: %s", error)
            error.__traceback__ = None  # its frames would keep the buffers, in a cycle, until a full collection
        finally:
            self._openings.leave(opening)


# ---- descriptors: the file descriptor limit of this process, and how many descriptors connections may use
#
# A connection uses one. The rest is kept for engines (three pipes each), logs, files and connections that are
# closing: a server without a free descriptor can neither start an engine nor accept a connection.
MAX_DESCRIPTORS = 65536
RESERVED_DESCRIPTORS = 64
MIN_CONNECTIONS = 8
MAX_CONNECTIONS = 1024
MAX_HANDSHAKES, MIN_HANDSHAKES = 128, 48  # at once: of all callers, and of one
KEPT_CONNECTIONS = 8  # for /health, while all others are being answered
ACCEPT_BATCH = 8  # connections that are accepted in one go


def raise_descriptor_limit() -> int:
    """Raise the soft limit to the hard one, up to MAX_DESCRIPTORS; return the limit now in force."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return MAX_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < limit:
        with suppress(ValueError, OSError):  # macOS has another limit, and refuses values above it
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            soft = limit
    return MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


def max_connections(descriptors: int) -> int:
    """Return how many connections may be open at once.

    >>> max_connections(128), max_connections(1024), max_connections(65536), max_connections(20)
    (64, 960, 1024, 8)
    """
    return min(max(descriptors - RESERVED_DESCRIPTORS, MIN_CONNECTIONS), MAX_CONNECTIONS)


def max_handshakes(connections: int) -> int:
    return min(MAX_HANDSHAKES, connections // 4)


def max_handshakes_of_network(handshakes: int) -> int:
    """Return how many of the handshakes one caller may hold.

    A further one replaces the oldest. With fewer than MIN_HANDSHAKES, a burst would end the handshakes of honest
    callers from the same address.

    >>> max_handshakes_of_network(128), max_handshakes_of_network(48)
    (64, 48)
    """
    return max(handshakes // 2, min(handshakes, MIN_HANDSHAKES))


def num_kept(connections: int) -> int:
    """Return how many of the connections are reserved for /health."""
    return min(KEPT_CONNECTIONS, connections // 4)
