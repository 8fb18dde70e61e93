"""Bound the connections of a server. When all places are taken, a new connection replaces an idle one.

So idle sockets cannot keep others out: the connection that has been idle longest is closed first, then the one that
has been sending a body longest. Only when every connection is being answered is a new one refused. Independent of
HTTP.
"""

from __future__ import annotations

from typing import Protocol


class PlacedConnection(Protocol):
    """The part of a connection that ConnectionPlaces uses."""

    @property
    def is_receiving(self) -> bool:
        """Return whether the body of its request is still arriving."""

    def evict(self) -> None:
        """Close it at once. It calls `leave` when it is closed."""


class ConnectionPlaces:
    """The open connections, in the order in which they became idle or busy. For one event loop."""

    def __init__(self, max_connections: int) -> None:
        self._max_connections = max_connections
        self._idle: dict[PlacedConnection, None] = {}
        self._busy: dict[PlacedConnection, None] = {}

    def __len__(self) -> int:
        return len(self._idle) + len(self._busy)

    def enter(self, connection: PlacedConnection) -> bool:
        """Give a new connection a place, as idle; return False if all connections are being answered."""
        if len(self) >= self._max_connections and not self._evict_one():
            return False
        self._idle[connection] = None
        return True

    def set_busy(self, connection: PlacedConnection) -> None:
        """Mark a connection as busy: the head of its request has arrived."""
        if connection in self._idle:
            del self._idle[connection]
            self._busy[connection] = None

    def set_idle(self, connection: PlacedConnection) -> None:
        """Mark a connection as idle: its answer is complete."""
        if connection in self._busy:
            del self._busy[connection]
            self._idle[connection] = None

    def leave(self, connection: PlacedConnection) -> None:
        self._idle.pop(connection, None)
        self._busy.pop(connection, None)

    def _evict_one(self) -> bool:
        victim = next(iter(self._idle), None) or next((one for one in self._busy if one.is_receiving), None)
        if victim is None:
            return False
        self.leave(victim)
        victim.evict()
        return True
