"""The identity and the CPU time of a process.

Never raises; None where the process is gone or the system does not tell. A pid is given to another process after its
owner has ended, so a process is identified by the pid together with a mark of its start.
"""

from __future__ import annotations

import errno
import socket
from pathlib import Path

_STATE, _BIRTH_TICKS = 0, 19  # fields of /proc/PID/stat, counted after the name
_PROC = Path("/proc/self/stat")


def start_mark(pid: int) -> str | None:
    """Return a mark of the process's start, which the pid's next owner will not have; None where it has ended."""
    fields = _stat(pid)
    if fields is not None:  # ticks since the machine started: setting the clock does not move them
        return fields[_BIRTH_TICKS] if fields[_STATE] not in "ZX" else None
    return None if _PROC.exists() else _birth_by_psutil(pid)


def is_alive(pid: int, birth: str) -> bool:
    """Return whether the process that had this mark still runs."""
    return start_mark(pid) == birth


def cpu_s(pid: int) -> float | None:
    """Return the seconds of CPU time it has used so far, to some 10 ms; None where it is gone."""
    import psutil

    try:
        times = psutil.Process(pid).cpu_times()
    except (psutil.Error, OSError, ValueError):
        return None
    return float(times.user + times.system)


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


def _stat(pid: int) -> list[str] | None:
    """Return the fields behind the name, which stands in brackets and may hold anything; None where it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return fields if len(fields) > _BIRTH_TICKS else None


def _birth_by_psutil(pid: int) -> str | None:
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else repr(process.create_time())
    except (psutil.Error, OSError, ValueError):
        return None
