"""Bind the address of a server. Imports no server: a port in use is reported before anything is loaded."""

from __future__ import annotations

import errno
import socket

from eaglelocal.errors import ResourceError, UsageError

BACKLOG = 256  # connections that the system queues until they are accepted


def bind_socket(host: str, port: int, *, flag: str = "--port") -> socket.socket:
    """Return a listening socket; `flag` is the option that chose the port, for the hint.

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
            hint = f"`{flag} {port + 1}`; `eaglelocal ps` lists running servers"
            raise ResourceError(f"port {port} of {host} is taken", hint=hint) from error
        raise UsageError(f"{host} port {port} cannot be listened on: {error.strerror}") from error
    listening.setblocking(False)
    return listening
