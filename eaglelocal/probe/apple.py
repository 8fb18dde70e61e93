"""Facts about a Mac from sysctl, system_profiler and Metal. On other systems every answer is None."""

from __future__ import annotations

import platform
import sys
from typing import cast

from eaglelocal.core.json_text import read_object
from eaglelocal.probe.machine import Unified
from eaglelocal.probe.subprocess_calls import ask_text, parse_count

SYSCTL = "/usr/sbin/sysctl"
SYSTEM_PROFILER = ("/usr/sbin/system_profiler", "SPDisplaysDataType", "-json", "-detailLevel", "basic")
WORKING_SET_SCRIPT = (
    'ObjC.import("Metal");'
    'ObjC.bindFunction("MTLCreateSystemDefaultDevice", ["id", []]);'
    "String($.MTLCreateSystemDefaultDevice().recommendedMaxWorkingSetSize)"
)
OSASCRIPT = ("/usr/bin/osascript", "-l", "JavaScript", "-e", WORKING_SET_SCRIPT)
SYSCTL_S, METAL_S, PROFILER_S = 2.0, 2.0, 3.0
# The GPU's share if the owner set no limit: two thirds of a small memory, three quarters of a large one
SMALL_BYTES, SMALL_SHARE, LARGE_SHARE = 32 << 30, 2 / 3, 3 / 4


def read_sysctl(key: str, *, is_tree: bool = False) -> str | None:
    """Return the value of one key, or all keys below it, as lines "key: value"; None if there are none."""
    if sys.platform != "darwin":
        return None
    return ask_text((SYSCTL, key) if is_tree else (SYSCTL, "-n", key), timeout_s=SYSCTL_S)


def read_unified() -> Unified | None:
    """Read an Apple chip's unified memory. None elsewhere: llama.cpp cannot use the memory of an Intel Mac's GPU."""
    if sys.platform != "darwin" or platform.machine() != "arm64":
        return None
    return parse_unified(
        chip=read_sysctl("machdep.cpu.brand_string"),
        memory_bytes=read_sysctl("hw.memsize"),
        limit_mib=read_sysctl("iogpu.wired_limit_mb"),
        working_set=ask_text(OSASCRIPT, timeout_s=METAL_S),
        displays=ask_text(SYSTEM_PROFILER, timeout_s=PROFILER_S),
    )


def parse_unified(
    *,
    chip: str | None,
    memory_bytes: str | None,
    limit_mib: str | None,
    working_set: str | None = None,
    displays: str | None = None,
) -> Unified:
    """Parse the programs' output. A limit of 0 is the system's default; `working_set` is Metal's own figure."""
    total, limit = parse_count(memory_bytes), parse_count(limit_mib)
    owner_limit = limit * 1024 * 1024 if limit else None
    cores, metal = parse_displays(displays or "")
    return Unified(
        chip=chip or None,
        total_bytes=total,
        gpu_limit_bytes=owner_limit,
        working_set_bytes=_check_working_set(parse_count(working_set), total)
        or owner_limit
        or default_working_set(total),
        gpu_cores=cores,
        metal=metal,
    )


def default_working_set(total_bytes: int | None) -> int | None:
    if total_bytes is None:
        return None
    return int(total_bytes * (SMALL_SHARE if total_bytes <= SMALL_BYTES else LARGE_SHARE))


def parse_displays(text: str) -> tuple[int | None, str | None]:
    """Return GPU cores and Metal's version from system_profiler's JSON; None if it does not state them."""
    try:
        displays = cast("list[object]", read_object(text)["SPDisplaysDataType"])
        gpu = next(each for each in displays if isinstance(each, dict) and "sppci_cores" in each)
    except (ValueError, KeyError, TypeError, StopIteration):
        return None, None
    family = str(gpu.get("spdisplays_mtlgpufamilysupport", ""))  # spdisplays_metal3
    version = family.removeprefix("spdisplays_metal")
    return parse_count(str(gpu["sppci_cores"])), f"Metal {version}" if version.isdecimal() else None


def _check_working_set(working_set: int | None, total: int | None) -> int | None:
    return working_set if working_set and total and total // 4 <= working_set <= total else None
