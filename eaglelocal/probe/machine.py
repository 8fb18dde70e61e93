"""What a machine is, as nouns. Plain data; every figure that could not be found out is None."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One NVIDIA device as NVML numbers it."""

    index: int
    name: str | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    capability: str | None = None  # compute capability, such as 8.6
    driver: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unified:
    """Memory that an Apple chip shares between CPU and GPU."""

    chip: str | None = None
    total_bytes: int | None = None
    gpu_limit_bytes: int | None = None  # set by the owner; None: the system's default


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    name: str | None = None
    architecture: str | None = None
    logical_cores: int | None = None
    physical_cores: int | None = None
    allowed_cores: int | None = None  # logical cores in this process's affinity
    quota_cores: float | None = None  # CPU time the cgroup grants, in cores; None: no limit
    usable_threads: int = 1
    vector_extensions: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Main memory, as small as the cgroup makes it."""

    total_bytes: int | None = None
    available_bytes: int | None = None
    limit_bytes: int | None = None  # the cgroup's; None: no limit
    swap_total_bytes: int | None = None
    swap_free_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaCpp:
    """llama-cpp-python as it is installed, found out without loading it."""

    version: str | None = None
    backends: tuple[str, ...] = ()  # cpu, cuda, metal, ...
    folder: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    gpus: tuple[Gpu, ...]
    unified: Unified | None
    cpu: Cpu
    memory: Memory
    cache_free_bytes: int | None  # on the disk that holds the cache folder
    llama_cpp: LlamaCpp
