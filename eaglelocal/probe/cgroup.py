"""The limits of CPU time and memory that a container or a service sets for this process, in cgroups v1 and v2.

A limit may be set on the process's own group or on any group above it; the tightest counts. In a container the path
in /proc/self/cgroup may not exist below the mount, so the mount's root is always read too.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from eaglelocal.core.records import dataclass
from eaglelocal.probe.system_files import parse_count, read_text

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
    """Return the cores of cpu.max: 1.5 for "150000 100000"; None for "max 100000", which is no limit."""
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
