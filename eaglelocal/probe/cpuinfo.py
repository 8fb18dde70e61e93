"""Parsers of the CPU's name and of the vector extensions that ggml has kernels for. Opens no files.

The sources are /proc/cpuinfo, whose keys differ between x86, ARM and RISC-V, and sysctl on macOS.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

import psutil

from eaglelocal.core.records import dataclass
from eaglelocal.probe.apple import read_sysctl
from eaglelocal.probe.subprocess_calls import parse_count, read_text

# extensions with ggml kernels, by the systems' names, in the order in which they are shown
X86 = (
    "sse4_2", "avx", "f16c", "fma", "avx2", "avx_vnni", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16",
    "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16",
)  # fmt: skip
ARM = ("neon", "asimd", "asimdhp", "asimddp", "i8mm", "bf16", "sve", "svei8mm", "svebf16", "sve2", "sme", "sme2")
APPLE = {
    "hw.optional.AdvSIMD": "asimd",
    "hw.optional.arm.FEAT_FP16": "asimdhp",
    "hw.optional.arm.FEAT_DotProd": "asimddp",
    "hw.optional.arm.FEAT_I8MM": "i8mm",
    "hw.optional.arm.FEAT_BF16": "bf16",
    "hw.optional.arm.FEAT_SME": "sme",
    "hw.optional.arm.FEAT_SME2": "sme2",
    "hw.optional.avx1_0": "avx",
    "hw.optional.fma": "fma",
    "hw.optional.avx2_0": "avx2",
    "hw.optional.avx512f": "avx512f",
}
NAME_KEYS = ("model name", "Model", "Hardware", "cpu model", "uarch", "cpu")
FLAG_KEYS = ("flags", "Features")

Processor = Mapping[str, str]


def parse_cpuinfo(text: str) -> tuple[Processor, ...]:
    """Return the blocks of /proc/cpuinfo; the last may describe the board and not a processor."""
    blocks = [dict(_parse_fields(block)) for block in text.split("\n\n")]
    return tuple(block for block in blocks if block)


def _parse_fields(block: str) -> list[tuple[str, str]]:
    rows = [line.partition(":") for line in block.splitlines()]
    return [(key.strip(), value.strip()) for key, colon, value in rows if colon]


def find_cpu_name(blocks: tuple[Processor, ...]) -> str | None:
    """Return the processor's name, else the board's; None if neither is stated."""
    for key in NAME_KEYS:
        for block in blocks:
            if block.get(key):
                return block[key]
    return None


def find_vector_extensions(blocks: tuple[Processor, ...]) -> tuple[str, ...] | None:
    """Return the extensions that every processor has; None if the system does not state them."""
    flags = [frozenset(block[key].split()) for block in blocks for key in FLAG_KEYS if key in block]
    if flags:
        shared = frozenset.intersection(*flags)
        return tuple(name for name in (*X86, *ARM) if name in shared)
    isas = [block["isa"] for block in blocks if "isa" in block]
    return _parse_riscv_isa(isas[0]) if isas else None


def _parse_riscv_isa(isa: str) -> tuple[str, ...]:
    """Return the vector extensions in rv64imafdcv_zvfh: single letters up to the first underscore, then words."""
    letters, *words = isa.lower().split("_")
    single = ("v",) if "v" in letters.removeprefix("rv") else ()
    return (*single, *(word for word in words if word.startswith("zv")))


def map_cores(blocks: tuple[Processor, ...]) -> dict[int, str]:
    """Map logical CPUs to a name of their physical core, as far as the system states it."""
    keys: dict[int, str] = {}
    for block in blocks:
        number, core = block.get("processor", ""), block.get("core id")
        if number.isdecimal() and core is not None:
            keys[int(number)] = f"{block.get('physical id', '0')}:{core}"
    return keys


def parse_sysctl(text: str) -> dict[str, str]:
    """Parse lines "key: value" of macOS's sysctl."""
    return dict(_parse_fields(text))


def find_apple_extensions(sysctl: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(name for key, name in APPLE.items() if sysctl.get(key) == "1")


# ---- cgroups v1 and v2: the limits of CPU time and memory that a container or a service sets for this process
#
# A limit may be set on the process's own group or on any group above it; the tightest counts. In a container the path
# in /proc/self/cgroup may not exist below the mount, so the mount's root is always read too.
MEMBERSHIP = Path("/proc/self/cgroup")
ROOT = Path("/sys/fs/cgroup")
NO_LIMIT_BYTES = 1 << 62  # v1 writes "no limit" as a number near 2^63


@dataclass(frozen=True, slots=True)
class Cgroups:
    """The cgroups of this process."""

    membership: str  # text of /proc/self/cgroup
    root: Path = ROOT

    def read_quota_cores(self) -> float | None:
        """Return the CPU time that is granted, in cores; None without a limit."""
        v2 = (parse_cpu_max(read_text(group / "cpu.max")) for group in self._groups(""))
        v1 = (
            parse_cfs(read_text(group / "cpu.cfs_quota_us"), read_text(group / "cpu.cfs_period_us"))
            for group in self._groups("cpu")
        )
        return min((cores for cores in (*v2, *v1) if cores is not None), default=None)

    def read_memory_limit(self) -> MemoryLimit | None:
        """Return the limit of the group with the least memory left; None without a limit."""
        v2 = (_read_memory(group, "memory.max", "memory.current", "") for group in self._groups(""))
        v1 = (
            _read_memory(group, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
            for group in self._groups("memory")
        )
        limits = [limit for limit in (*v2, *v1) if limit is not None]
        return min(limits, key=lambda limit: limit.left_bytes, default=None)

    def _groups(self, controller: str) -> Iterator[Path]:
        """Yield the folders of the process's group and of those above; the controller "" means v2."""
        for controllers, path in parse_membership(self.membership):
            if controller in controllers:
                names = ("", "unified") if controller == "" else (",".join(controllers), controller)
                for name in dict.fromkeys(names):
                    yield from _list_groups_above(self.root / name, path)


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """A cgroup's memory limit and its use."""

    limit_bytes: int
    used_bytes: int  # without file pages, which can be dropped

    @property
    def left_bytes(self) -> int:
        return max(0, self.limit_bytes - self.used_bytes)


def read_own_cgroups() -> Cgroups:
    return Cgroups(read_text(MEMBERSHIP))


def parse_membership(text: str) -> list[tuple[tuple[str, ...], str]]:
    """Return the lines of /proc/self/cgroup as (controllers, path); v2 has the one controller ""."""
    rows = [line.split(":", 2) for line in text.splitlines()]
    return [(tuple(row[1].split(",")), row[2]) for row in rows if len(row) == 3]


def parse_cpu_max(text: str) -> float | None:
    """Return the cores of cpu.max: 1.5 for "150000 100000"; None for "max 100000", which does not limit them."""
    words = text.split()
    return parse_cfs(*words) if len(words) == 2 else None


def parse_cfs(quota: str, period: str) -> float | None:
    """Return the cores of a quota, in microseconds of CPU time per period; None for -1 or "max", no limit."""
    quota_us, period_us = parse_count(quota), parse_count(period)
    return quota_us / period_us if quota_us and period_us else None


def parse_limit(text: str) -> int | None:
    limit = parse_count(text)
    return None if limit is None or limit >= NO_LIMIT_BYTES else limit


def parse_stat(text: str, key: str) -> int:
    """Return a figure of memory.stat; 0 where it is missing."""
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == key:
            return parse_count(value) or 0
    return 0


def _read_memory(group: Path, limit_file: str, used_file: str, prefix: str) -> MemoryLimit | None:
    """Return a group's limit and use; None without a limit.

    File pages do not count as used, because the kernel can drop them, active ones too.
    """
    limit_bytes = parse_limit(read_text(group / limit_file))
    if limit_bytes is None:
        return None
    used_bytes = parse_count(read_text(group / used_file)) or 0
    stat = read_text(group / "memory.stat")
    dropped_bytes = parse_stat(stat, f"{prefix}inactive_file") + parse_stat(stat, f"{prefix}active_file")
    return MemoryLimit(limit_bytes, max(0, used_bytes - dropped_bytes))


def _list_groups_above(base: Path, path: str) -> Iterator[Path]:
    names = PurePosixPath(path).parts[1:]
    if ".." in names:  # outside this cgroup namespace
        names = ()
    for depth in range(len(names), -1, -1):
        yield base.joinpath(*names[:depth])


# ---- the number of threads for llama.cpp: the physical cores that this process may use
#
# Respects affinity (taskset, a container's cpuset) and the cgroup's CPU time. Hyperthreads of a core count once,
# because they share its arithmetic units. Efficiency cores are left out, because the others would wait for them at
# every barrier. Calibration may later find a better number.
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
