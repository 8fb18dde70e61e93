"""How many threads: affinity, hyperthreads and CPU quota counted."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from eaglelocal.probe.cpuinfo import (
    count_threads,
    count_usable_threads,
    keep_capable,
    list_allowed_cpus,
    map_physical_cores,
    parse_cpu_list,
)

FOUR_CORES_EIGHT_THREADS = {cpu: str(cpu % 4) for cpu in range(8)}


@pytest.mark.parametrize(
    ("allowed", "core_of", "quota_cores", "threads"),
    [
        (range(8), FOUR_CORES_EIGHT_THREADS, None, 4),
        (range(8), FOUR_CORES_EIGHT_THREADS, 2.0, 2),
        (range(8), FOUR_CORES_EIGHT_THREADS, 2.9, 2),
        (range(8), FOUR_CORES_EIGHT_THREADS, 0.5, 1),
        (range(8), FOUR_CORES_EIGHT_THREADS, 64.0, 4),
        ((0, 4), FOUR_CORES_EIGHT_THREADS, None, 1),
        ((0, 5), FOUR_CORES_EIGHT_THREADS, None, 2),
        ((0, 1, 4, 5), FOUR_CORES_EIGHT_THREADS, None, 2),
        (range(6), {}, None, 6),
        ((0, 1, 99), {0: "a", 1: "a"}, None, 2),
        ((), {}, None, 1),
    ],
)
def test_threads_for(
    allowed: tuple[int, ...], core_of: dict[int, str], quota_cores: float | None, threads: int
) -> None:
    assert count_threads(frozenset(allowed), core_of, quota_cores) == threads


@pytest.mark.parametrize(
    ("text", "cpus"), [("0-3,8\n", {0, 1, 2, 3, 8}), ("5", {5}), ("", set()), ("0-1,4-5", {0, 1, 4, 5})]
)
def test_cpu_list(text: str, cpus: set[int]) -> None:
    assert parse_cpu_list(text) == cpus


@pytest.mark.parametrize("name", ["core_cpus_list", "thread_siblings_list"])
def test_cores_by_their_siblings(tmp_path: Path, name: str) -> None:
    for cpu in range(4):
        topology = tmp_path / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / name).write_text(f"{cpu % 2},{cpu % 2 + 2}\n")
    cores = map_physical_cores(frozenset(range(4)), folder=tmp_path)
    assert cores == {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}


@pytest.mark.parametrize(
    ("capacities", "fast"),
    [
        ((1024, 1024, 440, 440), {0, 1}),
        ((1024, 906, 906, 325), {0, 1, 2}),
        ((1024,) * 4, {0, 1, 2, 3}),
        ((), {0, 1, 2, 3}),
    ],
)
def test_slow_cores_of_arm_are_left_out(tmp_path: Path, capacities: tuple[int, ...], fast: set[int]) -> None:
    for cpu, capacity in enumerate(capacities):
        (tmp_path / f"cpu{cpu}").mkdir()
        (tmp_path / f"cpu{cpu}" / "cpu_capacity").write_text(f"{capacity}\n")
    assert keep_capable(frozenset(range(4)), folder=tmp_path) == fast


def test_cores_by_cpuinfo_where_there_is_no_topology(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor : 0\ncore id : 7\n\nprocessor : 1\ncore id : 7\n")
    assert map_physical_cores(frozenset({0, 1}), folder=tmp_path, cpuinfo=cpuinfo) == {0: "0:7", 1: "0:7"}


def test_cores_of_a_system_that_says_nothing(tmp_path: Path) -> None:
    assert map_physical_cores(frozenset({0}), folder=tmp_path, cpuinfo=tmp_path / "missing") == {}


def test_this_machine() -> None:
    assert 1 <= count_usable_threads() <= (os.cpu_count() or 1)


@pytest.mark.skipif(sys.platform != "linux", reason="affinity can be set on Linux only")
def test_affinity_is_obeyed() -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert list_allowed_cpus() == frozenset({min(before)})
        assert count_usable_threads() == 1
    finally:
        os.sched_setaffinity(0, before)
