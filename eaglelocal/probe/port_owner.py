"""The process that listens on a port of this machine, as far as the system tells."""

from __future__ import annotations

import errno
import socket


def is_taken(host: str, port: int) -> bool:
    """Return whether a server could not listen there, by binding for a moment. False if the host is not local."""
    try:
        (family, kind, _, _, address), *_ = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM)
        with socket.socket(family, kind) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do, for closing connections
            trial.bind(address)
            trial.listen(1)
    except (OSError, OverflowError) as problem:
        return getattr(problem, "errno", None) == errno.EADDRINUSE
    return False


def port_listener(port: int) -> str | None:
    """Return name and pid of the process that listens there; None where the system does not tell this user."""
    import psutil

    try:
        found = psutil.net_connections(kind="tcp")
    except (psutil.Error, OSError):
        return None
    pids = (each.pid for each in found if each.status == psutil.CONN_LISTEN and each.laddr and each.laddr.port == port)
    pid = next((pid for pid in pids if pid), None)
    if pid is None:
        return None
    try:
        return f"{psutil.Process(pid).name()} (pid {pid})"
    except (psutil.Error, OSError):
        return f"pid {pid}"
