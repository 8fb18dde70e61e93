"""The file descriptor limit of this process, and how many descriptors connections may use.

A connection uses one. The rest is kept for engines (three pipes each), logs, files and connections that are closing:
a server without a free descriptor can neither start an engine nor accept a connection.
"""

from __future__ import annotations

from contextlib import suppress

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
    """Return how many of the connections may be in a TLS handshake at once."""
    return min(MAX_HANDSHAKES, connections // 4)


def max_handshakes_of_network(handshakes: int) -> int:
    """Return how many of the handshakes may be those of one caller.

    A further one replaces the oldest. With fewer than MIN_HANDSHAKES, a burst would end the handshakes of honest
    callers from the same address.

    >>> max_handshakes_of_network(128), max_handshakes_of_network(48)
    (64, 48)
    """
    return max(handshakes // 2, min(handshakes, MIN_HANDSHAKES))


def num_kept(connections: int) -> int:
    """Return how many of the connections are kept for /health."""
    return min(KEPT_CONNECTIONS, connections // 4)
