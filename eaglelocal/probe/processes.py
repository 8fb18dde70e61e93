"""What the system says of one process: is it the one we mean, and does it compute?

Never raises; None where the process is gone or the system does not tell. A pid alone names no process,
for it is given anew when its owner has ended: the pid and its birth mark together do.
"""

from __future__ import annotations

from pathlib import Path

_STATE, _BIRTH_TICKS = 0, 19  # fields of /proc/PID/stat, counted behind the name
_PROC = Path("/proc/self/stat")


def birth_of(pid: int) -> str | None:
    """A mark that the process keeps all its life and its pid's next owner will not have. None: it has ended."""
    fields = _stat(pid)
    if fields is not None:  # ticks since the machine started: a clock that is set does not move them
        return fields[_BIRTH_TICKS] if fields[_STATE] not in "ZX" else None
    return None if _PROC.exists() else _birth_by_psutil(pid)


def is_alive(pid: int, birth: str) -> bool:
    """Does the very process that had this mark still run?"""
    return birth_of(pid) == birth


def cpu_s(pid: int) -> float | None:
    """Seconds of processor time it has used so far, in tens of milliseconds."""
    import psutil

    try:
        times = psutil.Process(pid).cpu_times()
    except (psutil.Error, OSError, ValueError):
        return None
    return float(times.user + times.system)


def _stat(pid: int) -> list[str] | None:
    """The fields behind the name, which stands in brackets and may hold anything."""
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
