"""`probe()`, which describes this machine and survives the failure of each part.

Knows how to ask the system; the parsing is in the files beside it. Loads neither llama.cpp nor torch.
"""

from __future__ import annotations

import dataclasses
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import psutil

from eaglelocal import locations
from eaglelocal.probe.apple import read_unified, sysctl, sysctl_tree
from eaglelocal.probe.bandwidth import stored_bandwidth
from eaglelocal.probe.cgroup import MemoryLimit, own_cgroups
from eaglelocal.probe.cpuinfo import apple_extensions, cpu_name, parse_cpuinfo, parse_sysctl, vector_extensions
from eaglelocal.probe.installed_library import read_llama_cpp
from eaglelocal.probe.machine import Cpu, Gpu, LlamaCpp, Machine, MainMemory, System
from eaglelocal.probe.nvml_child import ask_gpus, has_driver
from eaglelocal.probe.operating_system import read_system
from eaglelocal.probe.pci_cards import read_cards, together
from eaglelocal.probe.subprocess_calls import NoAnswer
from eaglelocal.probe.thread_count import CPUINFO, allowed_cpus, last_level_cache_bytes, usable_threads
from eaglelocal.probe.visible_gpus import as_seen

MIN_CLOCK_MHZ = 100.0
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")

T = TypeVar("T")


def probe() -> Machine:
    """Return the machine as far as it can be found out. Never raises. Memory bandwidth is looked up, not measured."""
    nvml, unanswered = _ask_nvml()
    machine = Machine(
        gpus=attempt_or(lambda: together(nvml, read_cards() if sys.platform.startswith("linux") else ()), nvml),
        unified=attempt_or(read_unified, None),
        cpu=attempt_or(_read_cpu, Cpu()),
        memory=attempt_or(_read_memory, MainMemory()),
        cache_free_bytes=attempt_or(lambda: free_bytes(locations.cache_dir()), None),
        hub_free_bytes=attempt_or(lambda: free_bytes(locations.hub_cache_dir()), None),
        llama_cpp=attempt_or(read_llama_cpp, LlamaCpp()),
        system=attempt_or(read_system, System()),
        unanswered=unanswered,
    )
    known = attempt_or(lambda: stored_bandwidth(machine), None)
    measured = dataclasses.replace(machine, cpu=dataclasses.replace(machine.cpu, bandwidth=known))
    return attempt_or(lambda: as_seen(measured, os.environ), measured)


def _ask_nvml() -> tuple[tuple[Gpu, ...], tuple[str, ...]]:
    """Return NVML's GPUs, and a complaint where the driver does not answer."""
    try:
        return (ask_gpus() if has_driver() else ()), ()
    except NoAnswer as complaint:
        return (), (str(complaint),)
    except Exception:  # as when the answer is cut off
        return (), ("NVIDIA's library said nothing that could be understood",)


def free_bytes(folder: Path) -> int:
    """Return the free space on the disk where a folder is or would be made."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(existing).free


def memory_of(*, total_bytes: int, available_bytes: int, limit: MemoryLimit | None) -> MainMemory:
    """Return the machine's memory, cut down to the cgroup's limit."""
    if limit is None:
        return MainMemory(total_bytes=total_bytes, available_bytes=available_bytes, installed_bytes=total_bytes)
    return MainMemory(
        total_bytes=min(total_bytes, limit.limit_bytes),
        available_bytes=min(available_bytes, limit.left_bytes),
        limit_bytes=limit.limit_bytes,
        installed_bytes=total_bytes,
    )


def _read_cpu() -> Cpu:
    unknown: tuple[str | None, tuple[str, ...] | None] = (None, None)
    name, extensions = attempt_or(_name_and_extensions, unknown)
    return Cpu(
        name=name or platform.processor() or None,
        architecture=platform.machine() or None,
        logical_cores=os.cpu_count(),
        physical_cores=attempt_or(lambda: psutil.cpu_count(logical=False), None),
        allowed_cores=attempt_or(lambda: len(allowed_cpus()), None),
        quota_cores=attempt_or(lambda: own_cgroups().quota_cores(), None),
        usable_threads=usable_threads(),
        clock_mhz=attempt_or(_clock_mhz, None),
        vector_extensions=extensions,
        last_level_cache_bytes=attempt_or(lambda: last_level_cache_bytes(allowed_cpus()), None),
    )


def _clock_mhz() -> float | None:
    """Return the highest clock, else the present one. Figures too low are no answer: some systems say 0, some GHz."""
    told = psutil.cpu_freq()
    known = [each for each in (told.max, told.current) if each >= MIN_CLOCK_MHZ] if told else []
    return known[0] if known else None


def _name_and_extensions() -> tuple[str | None, tuple[str, ...] | None]:
    if sys.platform == "darwin":
        return sysctl("machdep.cpu.brand_string"), apple_extensions(parse_sysctl(sysctl_tree("hw.optional") or ""))
    if not CPUINFO.exists():
        return None, None
    blocks = parse_cpuinfo(CPUINFO.read_text(errors="replace"))
    return cpu_name(blocks), vector_extensions(blocks)


def _read_memory() -> MainMemory:
    memory = psutil.virtual_memory()
    found = memory_of(
        total_bytes=memory.total,
        available_bytes=memory.available,
        limit=attempt_or(lambda: own_cgroups().memory(), None),
    )
    return dataclasses.replace(_with_swap(found), huge_pages=attempt_or(lambda: marked(HUGE_PAGES.read_text()), None))


def marked(text: str) -> str | None:
    """Return the value that a file of the kernel marks: madvise in "always [madvise] never"."""
    found = re.search(r"\[(\w+)\]", text)
    return found[1] if found else None


def _with_swap(memory: MainMemory) -> MainMemory:
    swap = attempt_or(psutil.swap_memory, None)
    if swap is None:
        return memory
    return dataclasses.replace(memory, swap_total_bytes=swap.total, swap_free_bytes=swap.free)


def attempt_or(ask: Callable[[], T], otherwise: T) -> T:
    """Return the answer of a call; `otherwise` where it fails."""
    try:
        return ask()
    except Exception:  # one missing fact must not prevent the others
        return otherwise
