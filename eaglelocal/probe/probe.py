"""`probe()` describes this machine; each part may fail without the others.

Reads the system; the parsing is in the other files of this folder. Loads neither llama.cpp nor torch.
"""

from __future__ import annotations

import dataclasses
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import psutil

from eaglelocal import locations
from eaglelocal.core.user_paths import find_package_file, read_package_version
from eaglelocal.probe.apple import read_sysctl, read_unified
from eaglelocal.probe.bandwidth import load_bandwidth
from eaglelocal.probe.cpuinfo import (
    CPUINFO,
    MemoryLimit,
    count_usable_threads,
    find_apple_extensions,
    find_cpu_name,
    find_vector_extensions,
    list_allowed_cpus,
    parse_cpuinfo,
    parse_sysctl,
    read_last_level_cache_bytes,
    read_own_cgroups,
)
from eaglelocal.probe.machine import Cpu, Gpu, LlamaCpp, Machine, MainMemory, System
from eaglelocal.probe.nvml_gpus import apply_visibility, ask_gpus, has_driver
from eaglelocal.probe.pci_cards import merge_gpus, read_cards
from eaglelocal.probe.subprocess_calls import NoAnswer, attempt_or, read_text

MIN_CLOCK_MHZ = 100.0
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def probe() -> Machine:
    """Return the machine as far as it can be described. Never raises. Memory bandwidth is loaded, not measured."""
    nvml, unanswered = _ask_nvml()
    machine = Machine(
        gpus=attempt_or(lambda: merge_gpus(nvml, read_cards() if sys.platform.startswith("linux") else ()), nvml),
        unified=attempt_or(read_unified, None),
        cpu=attempt_or(_read_cpu, Cpu()),
        memory=attempt_or(read_memory, MainMemory()),
        cache_free_bytes=attempt_or(lambda: free_bytes(locations.cache_dir()), None),
        hub_free_bytes=attempt_or(lambda: free_bytes(locations.hub_cache_dir()), None),
        llama_cpp=attempt_or(read_llama_cpp, LlamaCpp()),
        system=attempt_or(read_system, System()),
        unanswered=unanswered,
    )
    bandwidth = attempt_or(lambda: load_bandwidth(machine), None)
    complete = dataclasses.replace(machine, cpu=dataclasses.replace(machine.cpu, bandwidth=bandwidth))
    return attempt_or(lambda: apply_visibility(complete, os.environ), complete)


def _ask_nvml() -> tuple[tuple[Gpu, ...], tuple[str, ...]]:
    """Return NVML's GPUs, and a sentence if the driver does not answer."""
    try:
        return (ask_gpus() if has_driver() else ()), ()
    except NoAnswer as error:
        return (), (str(error),)
    except Exception:  # for example an answer that is cut off
        return (), ("the answer of NVIDIA's library cannot be read",)


def free_bytes(folder: Path) -> int:
    """Return the free bytes on the disk of a folder, which need not exist yet."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(existing).free


def limit_memory(*, total_bytes: int, available_bytes: int, limit: MemoryLimit | None) -> MainMemory:
    """Return the machine's memory, limited to what the cgroup allows."""
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
    name, extensions = attempt_or(_read_name_and_extensions, unknown)
    return Cpu(
        name=name or platform.processor() or None,
        architecture=platform.machine() or None,
        logical_cores=os.cpu_count(),
        physical_cores=attempt_or(lambda: psutil.cpu_count(logical=False), None),
        allowed_cores=attempt_or(lambda: len(list_allowed_cpus()), None),
        quota_cores=attempt_or(lambda: read_own_cgroups().read_quota_cores(), None),
        usable_threads=count_usable_threads(),
        clock_mhz=attempt_or(_read_clock_mhz, None),
        vector_extensions=extensions,
        last_level_cache_bytes=attempt_or(lambda: read_last_level_cache_bytes(list_allowed_cpus()), None),
    )


def _read_clock_mhz() -> float | None:
    """Return the highest clock, else the current one; None if too low, as some systems state 0 and some GHz."""
    clock = psutil.cpu_freq()
    known = [mhz for mhz in (clock.max, clock.current) if mhz >= MIN_CLOCK_MHZ] if clock else []
    return known[0] if known else None


def _read_name_and_extensions() -> tuple[str | None, tuple[str, ...] | None]:
    if sys.platform == "darwin":
        tree = parse_sysctl(read_sysctl("hw.optional", is_tree=True) or "")
        return read_sysctl("machdep.cpu.brand_string"), find_apple_extensions(tree)
    if not CPUINFO.exists():
        return None, None
    blocks = parse_cpuinfo(CPUINFO.read_text(errors="replace"))
    return find_cpu_name(blocks), find_vector_extensions(blocks)


def read_memory() -> MainMemory:
    """Return the memory of this machine, as far as this process may use it. Raises what psutil raises."""
    memory = psutil.virtual_memory()
    found = limit_memory(
        total_bytes=memory.total,
        available_bytes=memory.available,
        limit=attempt_or(lambda: read_own_cgroups().read_memory_limit(), None),
    )
    huge_pages = attempt_or(lambda: parse_marked(HUGE_PAGES.read_text()), None)
    swap = attempt_or(psutil.swap_memory, None)
    return dataclasses.replace(
        found,
        swap_total_bytes=swap and swap.total,
        swap_free_bytes=swap and swap.free,
        huge_pages=huge_pages,
    )


def parse_marked(text: str) -> str | None:
    """Return the value that is selected in a file of the kernel: madvise in "always [madvise] never"."""
    found = re.search(r"\[(\w+)\]", text)
    return found[1] if found else None


# ---- llama-cpp-python, which is not imported: that takes time and memory, and a broken one can crash the process
PACKAGE = "llama_cpp"
_BACKEND_FILE = re.compile(r"(?:lib)?ggml-([a-z0-9]+)(?:-[\w-]+)?(?:\.\d+)*\.(?:so|dylib|dll)(?:\.\d+)*")
_BASE_FILE = re.compile(r"libggml-base\.(?:so\.(\d+(?:\.\d+)+)|(\d+(?:\.\d+)+)\.dylib)")


def read_llama_cpp() -> LlamaCpp:
    folder = find_library_folder()
    names = [path.name for path in folder.iterdir()] if folder else []
    return LlamaCpp(
        version=read_package_version(PACKAGE),
        backends=find_backends(names),
        folder=folder,
        ggml_version=find_ggml_version(names),
    )


def find_backends(names: Iterable[str]) -> tuple[str, ...]:
    """Return the backends among file names: cpu and cuda for libggml-cpu-haswell.so, ggml-cuda.dll, libggml-base.so."""
    matches = (_BACKEND_FILE.fullmatch(name) for name in names)
    return tuple(sorted({match[1] for match in matches if match} - {"base"}))


def find_ggml_version(names: Iterable[str]) -> str | None:
    """Return 0.25.3 for libggml-base.so.0.25.3 or libggml-base.0.25.3.dylib; the longest of several."""
    matches = (_BASE_FILE.fullmatch(name) for name in names)
    return max((match[1] or match[2] for match in matches if match), key=lambda v: (len(v), v), default=None)


def find_library_folder() -> Path | None:
    """Return the folder in which the binding looks for its libraries; None if it is not installed."""
    override = os.environ.get("LLAMA_CPP_LIB_PATH")  # the binding's own variable
    if override:
        return _existing(Path(override))
    package = find_package_file(PACKAGE)
    return _existing(package.parent / "lib") if package else None


def _existing(folder: Path) -> Path | None:
    return folder if folder.is_dir() else None


# ---- the operating system, and the WSL or the container that it runs in, from small files and variables
CONTAINER_FILES = {".dockerenv": "docker", "run/.containerenv": "podman"}
CONTAINER_GROUPS = ("kubepods", "docker", "libpod", "lxc", "containerd")  # in the path of the cgroup of process 1


def read_system(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> System:
    kernel = platform.release() or None
    if sys.platform == "darwin":
        return System(name=f"macOS {platform.mac_ver()[0]}", kernel=kernel)
    if not sys.platform.startswith("linux"):
        return System(name=platform.system() or None, kernel=kernel)
    return read_linux_system(root, environ)


def read_linux_system(root: Path, environ: Mapping[str, str]) -> System:
    """Read a Linux system from the files below `root`."""
    release = parse_os_release(read_text(root / "etc/os-release") or read_text(root / "usr/lib/os-release"))
    kernel = read_text(root / "proc/sys/kernel/osrelease")
    return System(
        name=release.get("PRETTY_NAME") or release.get("NAME") or None,
        kernel=kernel or None,
        distribution=release.get("ID") or None,
        wsl=find_wsl_version(kernel),
        container=_find_container(root, environ),
    )


def parse_os_release(text: str) -> dict[str, str]:
    rows = (line.partition("=") for line in text.splitlines() if not line.startswith("#"))
    return {key.strip(): value.strip().strip("\"'") for key, equals, value in rows if equals}


def find_wsl_version(kernel: str) -> int | None:
    """Return 2 for 5.15.167.4-microsoft-standard-WSL2, and 1 for 4.4.0-19041-Microsoft, which is no Linux kernel."""
    if "microsoft" not in kernel.lower():
        return None
    return 2 if "wsl2" in kernel.lower() or "microsoft-standard" in kernel else 1


def _find_container(root: Path, environ: Mapping[str, str]) -> str | None:
    if environ.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    for name, kind in CONTAINER_FILES.items():
        if (root / name).exists():
            return kind
    if environ.get("container"):  # systemd-nspawn, lxc and podman set it
        return environ["container"]
    groups = read_text(root / "proc/1/cgroup")
    found = next((word for word in CONTAINER_GROUPS if f"/{word}" in groups), None)
    return {"kubepods": "kubernetes", "libpod": "podman"}.get(found, found) if found else None
