"""The number of threads for llama.cpp: the physical cores that this process may really use.

Heeds affinity (taskset, a container's cpuset) and the cgroup's CPU time, counts hyperthreads of a core once (they share
its arithmetic units, and a decode is bound by those or by memory), and leaves out efficiency cores, which make the
others wait at every barrier. Calibration may later find a better number.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil

from eaglelocal.probe.apple import sysctl
from eaglelocal.probe.cgroup import own_cgroups
from eaglelocal.probe.cpuinfo import core_keys, parse_cpuinfo

CPUS = Path("/sys/devices/system/cpu")
CPUINFO = Path("/proc/cpuinfo")
FAST_CPUS = Path("/sys/devices/cpu_core/cpus")  # exists only on Intel chips with two kinds of core
FAST_SHARE = 0.6  # of the fastest core's capacity, where the kernel states it, as on ARM


def usable_threads() -> int:
    """Return the number of threads to use, at least 1. Never raises."""
    try:
        allowed = allowed_cpus()
        if sys.platform == "linux":
            return threads_for(_fast(allowed), physical_cores(allowed), own_cgroups().quota_cores())
        return max(1, min(len(allowed), _fast_cores_elsewhere()))
    except Exception:  # whatever a machine may be, the engine can start with one thread
        return 1


def threads_for(allowed: frozenset[int], core_of: Mapping[int, str], quota_cores: float | None) -> int:
    """Count the distinct cores among the allowed logical CPUs, at most the whole cores that the quota grants.

    A CPU that core_of does not know counts as a core of its own.
    """
    num_cores = len({core_of.get(cpu, f"cpu {cpu}") for cpu in allowed})
    granted = num_cores if quota_cores is None else math.floor(quota_cores)
    return max(1, min(num_cores, granted))


def allowed_cpus() -> frozenset[int]:
    """Return the logical CPUs in the process's affinity; all of them where the system has no affinity."""
    if sys.platform == "linux":
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def physical_cores(cpus: frozenset[int], *, folder: Path = CPUS, cpuinfo: Path = CPUINFO) -> dict[int, str]:
    """Map logical CPUs to a name of their core: the list of its siblings, else what /proc/cpuinfo states."""
    siblings = {cpu: name for cpu in cpus if (name := _siblings(folder / f"cpu{cpu}" / "topology"))}
    if siblings:
        return siblings
    try:
        return core_keys(parse_cpuinfo(cpuinfo.read_text(errors="replace")))
    except OSError:
        return {}


def last_level_cache_bytes(cpus: frozenset[int], *, folder: Path = CPUS) -> int | None:
    """Return the bytes of these CPUs' caches of the highest level, each counted once; None where unknown."""
    caches = [cache for cpu in cpus for cache in _caches(folder / f"cpu{cpu}" / "cache")]
    highest = max((level for level, _, _ in caches), default=0)
    return sum({shared: size for level, shared, size in caches if level == highest}.values()) or None


def _caches(folder: Path) -> list[tuple[int, str, int]]:
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


def _siblings(topology: Path) -> str:
    for name in ("core_cpus_list", "thread_siblings_list"):  # the second is the older name
        try:
            return (topology / name).read_text().strip()
        except OSError:
            continue
    return ""


def _fast(allowed: frozenset[int]) -> frozenset[int]:
    try:
        return allowed & parse_cpu_list(FAST_CPUS.read_text()) or allowed
    except (OSError, ValueError):
        return able(allowed)


def able(cpus: frozenset[int], *, folder: Path = CPUS) -> frozenset[int]:
    """Return the fast CPUs, by the capacity of each; all where one is not known."""
    try:
        capacity = {cpu: int((folder / f"cpu{cpu}" / "cpu_capacity").read_text()) for cpu in cpus}
    except (OSError, ValueError):
        return cpus
    return frozenset(cpu for cpu in cpus if capacity[cpu] >= FAST_SHARE * max(capacity.values()))


def _fast_cores_elsewhere() -> int:
    fast = sysctl("hw.perflevel0.physicalcpu") if sys.platform == "darwin" else None
    return int(fast) if fast else psutil.cpu_count(logical=False) or 1
