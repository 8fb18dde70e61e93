"""Facts about processes: their identity, and which one listens on a port.

Never raises; None if the process has ended or the system does not tell. Systems reuse pids, so a process is identified
by its pid together with a mark of its start.
"""

from __future__ import annotations

import errno
import socket
from pathlib import Path

_STATE, _BIRTH_TICKS = 0, 19  # fields of /proc/PID/stat, counted after the name
_PROC = Path("/proc/self/stat")


def start_mark(pid: int) -> str | None:
    """Return a mark of the process's start, which no later process with this pid has; None if it has ended."""
    fields = _read_stat(pid)
    if fields is not None:  # ticks since the machine started, which setting the clock does not change
        return fields[_BIRTH_TICKS] if fields[_STATE] not in "ZX" else None
    return None if _PROC.exists() else _read_start_by_psutil(pid)


def is_alive(pid: int, birth: str) -> bool:
    """Return whether the process with this mark is still running."""
    return start_mark(pid) == birth


def is_port_taken(host: str, port: int) -> bool:
    """Return whether the port is in use, by binding it for a moment. False if the host is not local."""
    try:
        (family, kind, _, _, address), *_ = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM)
        with socket.socket(family, kind) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do, because of closing connections
            trial.bind(address)
            trial.listen(1)
    except (OSError, OverflowError) as error:
        return getattr(error, "errno", None) == errno.EADDRINUSE
    return False


def find_port_listener(port: int) -> str | None:
    """Return name and pid of the process that listens on the port; None if the system does not tell this user."""
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


def _read_stat(pid: int) -> list[str] | None:
    """Return the fields after the name, which is in parentheses; None if the process has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return fields if len(fields) > _BIRTH_TICKS else None


def _read_start_by_psutil(pid: int) -> str | None:
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else repr(process.create_time())
    except (psutil.Error, OSError, ValueError):
        return None
