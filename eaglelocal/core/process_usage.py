"""The CPU time and memory of any process, as the operating system reports them."""

from __future__ import annotations

import os
import resource
import subprocess
from pathlib import Path

from eaglelocal.core.child_environment import make_environment
from eaglelocal.core.records import dataclass


@dataclass(frozen=True, slots=True)
class Usage:
    """A process's CPU time so far, and its resident memory now."""

    cpu_s: float
    resident_bytes: int


def read_usage(pid: int) -> Usage:
    """Return the usage of a process; zeros if it is gone, or if the system does not report it."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return read_stat(file.read())
    except FileNotFoundError:
        return Usage(0.0, 0) if Path("/proc/self").exists() else _run_ps(pid)
    except OSError:  # it ended between two reads
        return Usage(0.0, 0)


def read_stat(line: bytes) -> Usage:
    """Parse Linux's `pid (name) state ...`; utime, stime and rss follow the name, which may contain anything."""
    fields = line[line.rindex(b")") + 2 :].split()
    ticks = int(fields[11]) + int(fields[12])
    return Usage(ticks / os.sysconf("SC_CLK_TCK"), int(fields[21]) * resource.getpagesize())


def _run_ps(pid: int) -> Usage:
    # An option for each column: on BSD and macOS all that follows a `=` is the heading of that column.
    command = ["ps", "-o", "time=", "-o", "rss=", "-p", str(pid)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, env=make_environment()
        )
    except OSError:  # there is no ps, or no process for it
        return Usage(0.0, 0)
    return read_ps(done.stdout)


def read_ps(line: str) -> Usage:
    """Parse `[[days-]hours:]minutes:seconds KiB`. Zeros for anything else."""
    try:
        clock, kib = line.split()
        days, _, rest = clock.rpartition("-")
        parts = [float(part) for part in rest.split(":")]
        seconds = sum(part * 60**power for power, part in enumerate(reversed(parts)))
        return Usage(seconds + 86_400 * int(days or 0), int(kib) * 1024)
    except ValueError:
        return Usage(0.0, 0)
