"""Bounds the connections of a server. Where all places are taken, a newcomer gets the place of an idle connection.

So whoever opens sockets and says nothing keeps nobody out: the connection that has been idle for longest is closed
first, then the one that has been sending a body for longest. Only where every connection is being answered is a
newcomer refused. Knows no bytes and no HTTP.
"""

from __future__ import annotations

from typing import Protocol


class Connection(Protocol):
    """A connection as far as its place is concerned."""

    @property
    def is_receiving(self) -> bool:
        """Is its request's body still on its way?"""

    def evict(self) -> None:
        """Close it at once. It calls `leave` when it is closed."""


class ConnectionPlaces:
    """Who has a place, in the order in which they became idle or busy. Belongs to one event loop."""

    def __init__(self, max_connections: int) -> None:
        self._max_connections = max_connections
        self._idle: dict[Connection, None] = {}
        self._busy: dict[Connection, None] = {}

    def __len__(self) -> int:
        return len(self._idle) + len(self._busy)

    def enter(self, newcomer: Connection) -> bool:
        """Give a place to a newcomer, who is idle. False: all are being answered, and it has none."""
        if len(self) >= self._max_connections and not self._make_room():
            return False
        self._idle[newcomer] = None
        return True

    def set_busy(self, connection: Connection) -> None:
        """Its request's head has arrived."""
        if connection in self._idle:
            del self._idle[connection]
            self._busy[connection] = None

    def set_idle(self, connection: Connection) -> None:
        """Its answer is complete."""
        if connection in self._busy:
            del self._busy[connection]
            self._idle[connection] = None

    def leave(self, connection: Connection) -> None:
        self._idle.pop(connection, None)
        self._busy.pop(connection, None)

    def _make_room(self) -> bool:
        victim = next(iter(self._idle), None) or next((one for one in self._busy if one.is_receiving), None)
        if victim is None:
            return False
        self.leave(victim)
        victim.evict()
        return True
