"""The limits of one call in a process, and the errors of a process that gives no result."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from eaglelocal.core.records import dataclass


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """The limits of one call, and of opening the function.

    cpu_s         of CPU time, so that a busy machine does not fail calls
    memory_bytes  of all calls together, above what the process takes once it has started
    wall_s        of real time, as the last resort against a process that hangs
    max_reply_bytes  of what a call returns
    max_deaths    after so many killed or dead processes in a row, calls fail at once for `rest_s`, with the last error
    """

    cpu_s: float
    memory_bytes: int
    wall_s: float = 120.0
    max_reply_bytes: int = 64 * 1024 * 1024
    max_deaths: int = 3
    rest_s: float = 10.0


class LimitedProcessError(Exception):
    """The process gave no result. The text is a clause for people, such as "it ran for 2 s"."""


class TookTooLong(LimitedProcessError):
    pass


class TookTooMuchMemory(LimitedProcessError):
    """The process exceeded its memory limit. `detail` is the text of the function's MemoryError, or ""."""

    def __init__(self, max_bytes: int, detail: str = "") -> None:
        super().__init__(f"it takes more than {max_bytes // 2**20} MiB")
        self.detail = detail


class TooLargeReply(LimitedProcessError):
    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"its result has more than {max_bytes} bytes")


class ProcessDied(LimitedProcessError):
    """The process ended by itself. `exit_status` is negative for a signal."""

    def __init__(self, exit_status: int, last_line: str = "") -> None:
        super().__init__(f"its process ended with {format_status(exit_status)}{last_line and f': {last_line}'}")
        self.exit_status = exit_status


class CannotStart(LimitedProcessError):
    pass


class CallRaised(LimitedProcessError):
    """The function raised another error than an EagleLocalError, of the class named `kind`. The process lives on."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text or kind)
        self.kind = kind


def format_status(exit_status: int) -> str:
    if exit_status >= 0:
        return f"status {exit_status}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-exit_status).name
    return f"signal {-exit_status}"


# ---- process usage: the CPU time and memory of any process, as the operating system reports them
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


# ---- huge pages: huge pages for memory from the C library: whether they are used, and the variable that requests
# them
#
# llama.cpp allocates weights that it reads, caches and buffers through the C library. Where the system gives huge
# pages only on request (`madvise`), glibc requests them since 2.35 if a variable says so; other C libraries cannot.
TUNABLES, TUNABLE = "GLIBC_TUNABLES", "glibc.malloc.hugetlb"
FIRST_GLIBC = (2, 35)


def has_huge_pages(setting: str | None, environment: Mapping[str, str], glibc: tuple[int, ...]) -> bool:
    """Return whether the C library's memory lies in huge pages, by the system's `setting` and the environment."""
    is_requested = f"{TUNABLE}=1" in environment.get(TUNABLES, "")
    return setting == "always" or (setting == "madvise" and is_requested and glibc >= FIRST_GLIBC)


def tunables(environment: Mapping[str, str]) -> str:
    """Return the value of TUNABLES that asks for huge pages, unless the user's value already sets that tunable."""
    value = environment.get(TUNABLES, "")
    return value if TUNABLE in value else ":".join(filter(None, [value, f"{TUNABLE}=1"]))


def glibc_version() -> tuple[int, ...]:
    """Return a version such as (2, 36); empty if the C library is another."""
    try:
        name, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").split()
        return tuple(map(int, version.split("."))) if name == "glibc" else ()
    except (AttributeError, ValueError, OSError):  # other systems lack this name
        return ()


# ---- child environment: the environment of our child processes: the variables they need, and our own import path
#
# The list names the variables to keep, not those to remove: secrets may have any name (DATABASE_URL, SMTP_PASS). A
# missing variable is noticed at once, a leaked one never. A process's environment can be read in /proc while it runs,
# so it is left out before the start. Programs that users choose themselves (an editor, an agent) get everything.
NAMES = frozenset(
    (
        *("PATH", "HOME", "TMPDIR", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TZDIR"),
        *("LD_LIBRARY_PATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE"),
    )
)
# Users' settings for llama.cpp, drivers, threading and numeric libraries, and the C library; our paths and settings.
SETTINGS = (
    *("GGML_", "LLAMA_", "MTMD_"),
    *("CUDA_", "NVIDIA_", "HIP_", "ROCR_", "ROCM_", "HSA_", "AMD_", "GPU_", "ONEAPI_", "SYCL_", "ZE_", "ZES_", "UR_"),
    *("ROCBLAS_", "HIPBLASLT_", "MIOPEN_", "RCCL_", "NCCL_", "INTEL_", "METAL_", "__NV_"),
    *("VK_", "MESA_", "RADV_", "ANV_", "DRI_"),
    *("OMP_", "GOMP_", "KMP_", "OPENBLAS_", "MKL_", "BLIS_", "VECLIB_"),
    *("LC_", "LD_", "DYLD_", "GLIBC_", "MALLOC_"),
    *("XDG_", "EAGLELOCAL_"),
)
_SECRET = re.compile(r"KEYS?(_|$)|TOKENS?(_|$)|SECRET|PASS|CREDENTIAL|(^|_)AUTH(_|$)")  # such as NVIDIA_API_KEY


def make_environment(*, with_settings: bool = False) -> dict[str, str]:
    """Return what a child needs: parent and child are one program, however it was started. No secrets.

    with_settings  it reads our settings, or loads llama.cpp or a driver, and so gets what users set for these
    """
    kept = {name: value for name, value in os.environ.items() if name in NAMES or (with_settings and is_setting(name))}
    return {**kept, "PYTHONPATH": _import_path()}


def is_setting(name: str) -> bool:
    return name.startswith(SETTINGS) and not _SECRET.search(name)


def _import_path() -> str:
    root = str(Path(__file__).parents[2])  # keep its place in sys.path: another copy of this package may come later
    paths = [entry for entry in sys.path if entry == root or (entry and entry != os.getcwd())]
    return os.pathsep.join(paths if root in paths else [*paths, root])
