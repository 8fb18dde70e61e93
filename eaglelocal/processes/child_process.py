"""Our child processes: started as modules of this package, with an environment made for them, and ended.

The list of variables names those to keep, not those to remove: secrets may have any name (DATABASE_URL, SMTP_PASS). A
missing variable is noticed at once, a leaked one never. A process's environment can be read in /proc while it runs, so
it is left out before the start. Programs that users choose themselves (an editor, an agent) get everything.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from eaglelocal.core.records import dataclass

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
    settings = SETTINGS if with_settings else ()
    kept = {k: v for k, v in os.environ.items() if k in NAMES or (k.startswith(settings) and not _SECRET.search(k))}
    return {**kept, "PYTHONPATH": _import_path()}


def _import_path() -> str:
    root = str(Path(__file__).parents[2])  # keep its place in sys.path: another copy of this package may come later
    paths = [entry for entry in sys.path if entry == root or (entry and entry != os.getcwd())]
    return os.pathsep.join(paths if root in paths else [*paths, root])


def module_command(name: str, *arguments: str, options: tuple[str, ...] = ()) -> list[str]:
    """Return the command that runs a module of this package, wherever the package is, with Python's `options`."""
    # -P: a file in the user's working folder must not shadow one of our modules.
    return [sys.executable, "-P", *options, "-m", name, *arguments]


def start_module(
    name: str,
    *arguments: str,
    stdin: int | None = subprocess.PIPE,
    stdout: int | None = subprocess.PIPE,
    stderr: int | IO[bytes] | None = subprocess.PIPE,
    options: tuple[str, ...] = (),
    variables: Mapping[str, str] | None = None,
    has_own_group: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a module of this package. Its pipes are unbuffered. Raises OSError.

    options        of Python
    variables      its environment; None: `make_environment` with the user's settings
    has_own_group  it leads a process group of its own, so that Ctrl-C does not reach it
    """
    return subprocess.Popen(
        module_command(name, *arguments, options=options),
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        bufsize=0,
        env=make_environment(with_settings=True) if variables is None else variables,
        process_group=0 if has_own_group else None,
    )


@dataclass(frozen=True, slots=True)
class Usage:
    """A process's CPU time so far, and its resident memory now."""

    cpu_s: float
    resident_bytes: int


def read_usage(pid: int) -> Usage | None:
    """Return the usage of a process; None if it has ended, or if the system does not report it."""
    import psutil

    try:
        process = psutil.Process(pid)
        times = process.cpu_times()
        return Usage(times.user + times.system, process.memory_info().rss)
    except (psutil.Error, OSError, ValueError):
        return None


def name_signal(number: int) -> str:
    """Return a name such as SIGSEGV; empty for a real-time signal, which has none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return ""


def has_ended_within(process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout_s)
    return process.returncode is not None


def end_process(process: subprocess.Popen[bytes], patience_s: float) -> None:
    """Kill a process and close its pipes. Waits for its end no longer than so: a hanging driver may prevent it."""
    with contextlib.suppress(OSError):
        process.kill()
    has_ended_within(process, patience_s)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


# ---- huge pages for memory from the C library: whether they are used, and the variable that requests them
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
