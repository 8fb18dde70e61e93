"""Bind the address of a server, and find the address that other machines see.

Imports no server: a port in use is reported before anything is loaded.
"""

from __future__ import annotations

import errno
import socket

from eaglelocal.errors import ResourceError, UsageError

BACKLOG = 256  # connections that the system queues until they are accepted
MAX_PORT = 65535
FAR_AWAY = ("192.0.2.1", 9)  # an address for documentation, which no machine has


def bind_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Raises ResourceError for a port in use, UsageError for an invalid address.
    """
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = addresses[0]
        listening = socket.socket(family, kind, protocol)
    except OSError as error:
        raise UsageError(f"--host {host} cannot be listened on: {error.strerror or error}") from error
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            other = port + 1 if port < MAX_PORT else port - 1
            raise ResourceError(f"port {port} of {host} is taken", hint=f"--port {other}") from error
        raise UsageError(f"{host} port {port} cannot be listened on: {error.strerror}") from error
    listening.setblocking(False)
    return listening


def find_lan_address() -> str:
    """Return this machine's address on its outgoing network; "" without one. Sends nothing."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unsent:
            unsent.connect(FAR_AWAY)
            address: str = unsent.getsockname()[0]
    except OSError:
        return ""
    return "" if address.startswith("127.") or address == "0.0.0.0" else address
