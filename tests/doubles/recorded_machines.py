"""Recorded machines: NVML's calls, files of /sys, /proc and /etc, output of macOS's programs.

`RecordedNvml` has the functions of pynvml and replaces it; the rest is laid out as files and read by the same code
that reads a real machine. Recordings are in `machines/`, a JSON file for each.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml

from eaglelocal.probe.apple import parse_unified
from eaglelocal.probe.cpuinfo import (
    Cgroups,
    count_threads,
    find_cpu_name,
    find_vector_extensions,
    map_cores,
    parse_cpuinfo,
)
from eaglelocal.probe.machine import Cpu, LlamaCpp, Machine
from eaglelocal.probe.nvml_gpus import read_gpus
from eaglelocal.probe.pci_cards import merge_gpus, read_cards
from eaglelocal.probe.probe import find_backends, find_ggml_version, limit_memory, read_linux_system

FOLDER = Path(__file__).parent / "machines"
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.json")))
DISK_FREE_BYTES = 200 << 30

Recording = dict[str, Any]


def recording(name: str) -> Recording:
    content: Recording = json.loads((FOLDER / f"{name}.json").read_text())
    return content


def recorded_machine(name: str, root: Path) -> Machine:
    """Return the machine as the probe sees it; `root` is an empty folder, in which its files are laid out."""
    recorded = recording(name)
    lay_out(recorded, root)
    groups = Cgroups(_text(root / "proc/self/cgroup"), root / "sys/fs/cgroup")
    nvml = read_gpus(RecordedNvml(recorded["nvml"])) if recorded["nvml"] else ()
    unified = parse_unified(**recorded["apple"]) if "apple" in recorded else None
    names = recorded["llama_cpp"]["libraries"]
    return Machine(
        gpus=merge_gpus(nvml, read_cards(root)),
        unified=unified,
        cpu=_cpu(root, groups) if unified is None else Cpu(name=unified.chip, physical_cores=12, usable_threads=8),
        memory=limit_memory(
            total_bytes=recorded["memory"]["total"],
            available_bytes=recorded["memory"]["available"],
            limit=groups.read_memory_limit(),
        ),
        cache_free_bytes=DISK_FREE_BYTES,
        hub_free_bytes=DISK_FREE_BYTES,
        llama_cpp=LlamaCpp(
            version=recorded["llama_cpp"]["version"],
            backends=find_backends(names),
            ggml_version=find_ggml_version(names),
        ),
        system=read_linux_system(root, recorded.get("environ", {})),
    )


def lay_out(recorded: Recording, root: Path) -> None:
    for name, text in recorded["files"].items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    for name, goal in recorded["links"].items():
        (root / name).symlink_to(goal)


def _cpu(root: Path, groups: Cgroups) -> Cpu:
    blocks = parse_cpuinfo(_text(root / "proc/cpuinfo"))
    cores = map_cores(blocks)
    quota = groups.read_quota_cores()
    return Cpu(
        name=find_cpu_name(blocks),
        architecture="x86_64",
        logical_cores=len(cores),
        physical_cores=len(set(cores.values())),
        allowed_cores=len(cores),
        quota_cores=quota,
        usable_threads=count_threads(frozenset(cores), cores, quota),
        vector_extensions=find_vector_extensions(blocks),
    )


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def not_supported() -> pynvml.NVMLError:
    return pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


def always(_: str) -> bool:
    return True


@dataclass
class RecordedNvml:
    """A pynvml over a recording; values that are not recorded are unsupported.

    `works(name)` is called before each call; False makes the call fail as NVML does.
    """

    recorded: Recording
    works: Callable[[str], bool] = always
    calls: list[str] = field(default_factory=list)
    nvmlMemory_v2: int = pynvml.nvmlMemory_v2

    def nvmlInit(self) -> None:
        self._begin("nvmlInit")
        if "initError" in self.recorded:
            raise pynvml.NVMLError(getattr(pynvml, f"NVML_ERROR_{self.recorded['initError']}"))

    def nvmlShutdown(self) -> None:
        self._begin("nvmlShutdown")

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return str(self._of(self.recorded, "driver", "nvmlSystemGetDriverVersion")).encode()

    def nvmlSystemGetCudaDriverVersion(self) -> int:
        return int(self._of(self.recorded, "cuda", "nvmlSystemGetCudaDriverVersion"))

    def nvmlSystemGetProcessName(self, pid: int) -> str:
        return str(self._of(self.recorded["processes"], str(pid), "nvmlSystemGetProcessName"))

    def nvmlDeviceGetCount(self) -> int:
        return len(self._of(self.recorded, "devices", "nvmlDeviceGetCount"))

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Recording:
        device: Recording = self._of(self.recorded, "devices", "nvmlDeviceGetHandleByIndex")[index]
        return device

    def nvmlDeviceGetName(self, handle: Recording) -> str:
        return str(self._of(handle, "name", "nvmlDeviceGetName"))

    def nvmlDeviceGetUUID(self, handle: Recording) -> str:
        return str(self._of(handle, "uuid", "nvmlDeviceGetUUID"))

    def nvmlDeviceGetPciInfo(self, handle: Recording) -> SimpleNamespace:
        return SimpleNamespace(busId=str(self._of(handle, "busId", "nvmlDeviceGetPciInfo")).encode())

    def nvmlDeviceGetMemoryInfo(self, handle: Recording, version: int | None = None) -> SimpleNamespace:
        """Return the memory; version 2 counts the driver's reserved memory separately, version 1 as used."""
        memory = dict(self._of(handle, "memory", f"nvmlDeviceGetMemoryInfo{'_v2' if version else ''}"))
        if version and self.recorded.get("old"):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        if not version:
            memory["used"] += memory.pop("reserved")
        return SimpleNamespace(**memory)

    def nvmlDeviceGetCudaComputeCapability(self, handle: Recording) -> tuple[int, int]:
        major, minor = self._of(handle, "capability", "nvmlDeviceGetCudaComputeCapability")
        return major, minor

    def nvmlDeviceGetMemoryBusWidth(self, handle: Recording) -> int:
        return int(self._of(handle, "busWidth", "nvmlDeviceGetMemoryBusWidth"))

    def nvmlDeviceGetMaxClockInfo(self, handle: Recording, clock: int) -> int:
        if clock != pynvml.NVML_CLOCK_MEM:
            raise not_supported()
        return int(self._of(handle, "memoryClock", "nvmlDeviceGetMaxClockInfo"))

    def nvmlDeviceGetCurrPcieLinkGeneration(self, handle: Recording) -> int:
        return int(self._of(handle, "pcie", "nvmlDeviceGetCurrPcieLinkGeneration")["generation"])

    def nvmlDeviceGetCurrPcieLinkWidth(self, handle: Recording) -> int:
        return int(self._of(handle, "pcie", "nvmlDeviceGetCurrPcieLinkWidth")["width"])

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle: Recording) -> int:
        return int(self._of(handle, "pcie", "nvmlDeviceGetMaxPcieLinkGeneration")["maxGeneration"])

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: Recording) -> int:
        return int(self._of(handle, "pcie", "nvmlDeviceGetMaxPcieLinkWidth")["maxWidth"])

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: Recording) -> int:
        return int(self._of(handle, "powerLimit", "nvmlDeviceGetEnforcedPowerLimit"))

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Recording) -> list[SimpleNamespace]:
        return _processes(self._of(handle, "compute", "nvmlDeviceGetComputeRunningProcesses"))

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: Recording) -> list[SimpleNamespace]:
        return _processes(self._of(handle, "graphics", "nvmlDeviceGetGraphicsRunningProcesses"))

    def nvmlDeviceGetMigMode(self, handle: Recording) -> list[int]:
        return list(self._of(handle, "mig", "nvmlDeviceGetMigMode"))

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Recording) -> int:
        return int(self._of(handle, "maxSlices", "nvmlDeviceGetMaxMigDeviceCount"))

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Recording, index: int) -> Recording:
        found: Recording = self._of(handle["slices"], str(index), "nvmlDeviceGetMigDeviceHandleByIndex")
        return found

    def _begin(self, name: str) -> None:
        self.calls.append(name)
        if not self.works(name):
            raise not_supported()

    def _of(self, recorded: Recording, key: str, name: str) -> Any:
        self._begin(name)
        if key not in recorded:
            raise not_supported()
        return recorded[key]


def _processes(rows: list[list[int | None]]) -> list[SimpleNamespace]:
    return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in rows]
