"""Memory and CPU limits of containers and services, read from folders like those of the kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from eaglelocal.probe.cpuinfo import (
    Cgroups,
    MemoryLimit,
    parse_cfs,
    parse_cpu_max,
    parse_limit,
    parse_membership,
    parse_stat,
    read_own_cgroups,
)

V1 = "12:cpu,cpuacct:/docker/abc\n5:memory:/docker/abc\n1:name=systemd:/init.scope\n0::/\n"


def lay(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("max 100000\n", None),
        ("150000 100000\n", 1.5),
        ("400000 100000", 4.0),
        ("50000 200000", 0.25),
        ("", None),
        ("max", None),
        ("x y", None),
        ("100000 0", None),
    ],
)
def test_cpu_max(text: str, cores: float | None) -> None:
    assert parse_cpu_max(text) == cores


@pytest.mark.parametrize(
    ("quota", "period", "cores"), [("-1\n", "100000\n", None), ("200000\n", "100000\n", 2.0), ("", "", None)]
)
def test_cfs(quota: str, period: str, cores: float | None) -> None:
    assert parse_cfs(quota, period) == cores


@pytest.mark.parametrize(
    ("text", "limit"), [("max\n", None), ("9223372036854771712\n", None), ("1073741824\n", 1 << 30), ("", None)]
)
def test_memory_limit(text: str, limit: int | None) -> None:
    assert parse_limit(text) == limit


def test_memory_stat() -> None:
    text = "anon 5\nfile 7\ninactive_file 4096\ntotal_inactive_file 9\n"
    assert [parse_stat(text, key) for key in ("inactive_file", "total_inactive_file", "missing")] == [4096, 9, 0]


def test_membership() -> None:
    assert parse_membership(V1) == [
        (("cpu", "cpuacct"), "/docker/abc"),
        (("memory",), "/docker/abc"),
        (("name=systemd",), "/init.scope"),
        (("",), "/"),
    ]
    assert parse_membership("nonsense\n\n") == []


def test_v2_takes_the_tightest_group_above(tmp_path: Path) -> None:
    root = lay(
        tmp_path,
        {
            "user.slice/cpu.max": "300000 100000",
            "user.slice/app.scope/cpu.max": "max 100000",
            "user.slice/memory.max": "4000",
            "user.slice/memory.current": "3500",
            "user.slice/memory.stat": "inactive_file 300\nactive_file 200\n",
            "user.slice/app.scope/memory.max": "9000",
            "user.slice/app.scope/memory.current": "100",
        },
    )
    groups = Cgroups("0::/user.slice/app.scope\n", root)
    assert groups.read_quota_cores() == 3.0
    assert groups.read_memory_limit() == MemoryLimit(limit_bytes=4000, used_bytes=3000)


def test_v2_in_a_container_stands_at_the_root(tmp_path: Path) -> None:
    root = lay(tmp_path, {"cpu.max": "200000 100000", "memory.max": "1000", "memory.current": "1200"})
    groups = Cgroups("0::/\n", root)
    assert groups.read_quota_cores() == 2.0
    limit = groups.read_memory_limit()
    assert limit is not None
    assert limit.left_bytes == 0


def test_v1_where_the_path_is_the_hosts(tmp_path: Path) -> None:
    """Docker mounts the container's own group at the root, and names it by the host's path."""
    root = lay(
        tmp_path,
        {
            "cpu,cpuacct/cpu.cfs_quota_us": "250000",
            "cpu,cpuacct/cpu.cfs_period_us": "100000",
            "memory/memory.limit_in_bytes": "8000",
            "memory/memory.usage_in_bytes": "1000",
            "memory/memory.stat": "inactive_file 1\ntotal_inactive_file 300\ntotal_active_file 100\n",
        },
    )
    groups = Cgroups(V1, root)
    assert groups.read_quota_cores() == 2.5
    assert groups.read_memory_limit() == MemoryLimit(limit_bytes=8000, used_bytes=600)


def test_v1_with_a_folder_a_controller(tmp_path: Path) -> None:
    files = {"cpu/docker/abc/cpu.cfs_quota_us": "100000", "cpu/docker/abc/cpu.cfs_period_us": "50000"}
    assert Cgroups(V1, lay(tmp_path, files)).read_quota_cores() == 2.0


def test_v1_without_limits(tmp_path: Path) -> None:
    files = {
        "cpu,cpuacct/cpu.cfs_quota_us": "-1",
        "cpu,cpuacct/cpu.cfs_period_us": "100000",
        "memory/memory.limit_in_bytes": "9223372036854771712",
    }
    groups = Cgroups(V1, lay(tmp_path, files))
    assert (groups.read_quota_cores(), groups.read_memory_limit()) == (None, None)


def test_a_path_above_the_namespace_is_not_followed(tmp_path: Path) -> None:
    root = lay(tmp_path / "inner", {"cpu.max": "100000 100000"})
    lay(tmp_path, {"outer/cpu.max": "1 100000"})
    assert Cgroups("0::/../outer\n", root).read_quota_cores() == 1.0


def test_no_cgroups_at_all(tmp_path: Path) -> None:
    groups = Cgroups("", tmp_path)
    assert (groups.read_quota_cores(), groups.read_memory_limit()) == (None, None)


def test_this_process_can_be_asked() -> None:
    cores, memory = read_own_cgroups().read_quota_cores(), read_own_cgroups().read_memory_limit()
    assert cores is None or cores > 0
    assert memory is None or memory.limit_bytes >= 0
