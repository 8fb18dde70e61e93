"""The number of threads for llama.cpp: the physical cores that this process may use.

Respects affinity (taskset, a container's cpuset) and the cgroup's CPU time. Hyperthreads of a core count once, because
they share its arithmetic units. Efficiency cores are left out, because the others would wait for them at every
barrier. Calibration may later find a better number.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil

from eaglelocal.probe.apple import read_sysctl
from eaglelocal.probe.cgroup import read_own_cgroups
from eaglelocal.probe.cpuinfo import map_cores, parse_cpuinfo

CPUS = Path("/sys/devices/system/cpu")
CPUINFO = Path("/proc/cpuinfo")
FAST_CPUS = Path("/sys/devices/cpu_core/cpus")  # exists only on Intel chips with two kinds of core
FAST_SHARE = 0.6  # of the fastest core's capacity, which the kernel states on ARM


def count_usable_threads() -> int:
    """Return the number of threads to use, at least 1. Never raises."""
    try:
        allowed = list_allowed_cpus()
        if sys.platform == "linux":
            return count_threads(
                _keep_fast(allowed), map_physical_cores(allowed), read_own_cgroups().read_quota_cores()
            )
        return max(1, min(len(allowed), _count_fast_cores()))
    except Exception:  # on any machine the engine can start with one thread
        return 1


def count_threads(allowed: frozenset[int], core_of: Mapping[int, str], quota_cores: float | None) -> int:
    """Count the distinct cores among the allowed logical CPUs, at most the whole cores that the quota grants.

    A CPU that is not in core_of counts as a core of its own.
    """
    num_cores = len({core_of.get(cpu, f"cpu {cpu}") for cpu in allowed})
    granted = num_cores if quota_cores is None else math.floor(quota_cores)
    return max(1, min(num_cores, granted))


def list_allowed_cpus() -> frozenset[int]:
    """Return the logical CPUs in the process's affinity; all of them if the system has no affinity."""
    if sys.platform == "linux":
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def map_physical_cores(cpus: frozenset[int], *, folder: Path = CPUS, cpuinfo: Path = CPUINFO) -> dict[int, str]:
    """Map logical CPUs to a name of their core: the list of its hyperthreads, else what /proc/cpuinfo states."""
    siblings = {cpu: name for cpu in cpus if (name := _read_siblings(folder / f"cpu{cpu}" / "topology"))}
    if siblings:
        return siblings
    try:
        return map_cores(parse_cpuinfo(cpuinfo.read_text(errors="replace")))
    except OSError:
        return {}


def read_last_level_cache_bytes(cpus: frozenset[int], *, folder: Path = CPUS) -> int | None:
    """Return the bytes of these CPUs' caches of the highest level, each counted once; None if unknown."""
    caches = [cache for cpu in cpus for cache in _read_caches(folder / f"cpu{cpu}" / "cache")]
    highest = max((level for level, _, _ in caches), default=0)
    return sum({shared: size for level, shared, size in caches if level == highest}.values()) or None


def _read_caches(folder: Path) -> list[tuple[int, str, int]]:
    """Return the caches of one CPU: (level, CPUs that share it, bytes)."""
    found = []
    for index in folder.glob("index*"):
        try:
            level, shared, size = ((index / name).read_text().strip() for name in ("level", "shared_cpu_list", "size"))
            found.append((int(level), shared, parse_size(size)))
        except (OSError, ValueError):
            continue
    return found


def parse_size(text: str) -> int:
    """Return 33554432 for "32768K". Raises ValueError."""
    shift = {"K": 10, "M": 20, "G": 30}.get(text[-1:], 0)
    return int(text[:-1] if shift else text) << shift


def parse_cpu_list(text: str) -> frozenset[int]:
    """Return {0, 1, 2, 3, 8} for "0-3,8". Raises ValueError."""
    cpus: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def _read_siblings(topology: Path) -> str:
    for name in ("core_cpus_list", "thread_siblings_list"):  # the second is the older name
        try:
            return (topology / name).read_text().strip()
        except OSError:
            continue
    return ""


def _keep_fast(allowed: frozenset[int]) -> frozenset[int]:
    try:
        return allowed & parse_cpu_list(FAST_CPUS.read_text()) or allowed
    except (OSError, ValueError):
        return keep_capable(allowed)


def keep_capable(cpus: frozenset[int], *, folder: Path = CPUS) -> frozenset[int]:
    """Return the fast CPUs, by their capacity; all of them if a capacity is not known."""
    try:
        capacity = {cpu: int((folder / f"cpu{cpu}" / "cpu_capacity").read_text()) for cpu in cpus}
    except (OSError, ValueError):
        return cpus
    return frozenset(cpu for cpu in cpus if capacity[cpu] >= FAST_SHARE * max(capacity.values()))


def _count_fast_cores() -> int:
    fast = read_sysctl("hw.perflevel0.physicalcpu") if sys.platform == "darwin" else None
    return int(fast) if fast else psutil.cpu_count(logical=False) or 1
