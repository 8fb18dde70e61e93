"""The description of a machine: plain data, and its JSON. A figure that is not known is None."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from eaglelocal.core.records import dataclass

MAX_OTHERS_SHARE = 0.2
LARGE_SHARED_GPUS = (
    "8060S",
    "8050S",
    "8040S",
)  # AMD's Strix Halo; other integrated graphics are hardly faster than the CPU
PASSTHROUGH_DRIVER = "vfio-pci"  # the device is passed through to a virtual machine


@dataclass(frozen=True, slots=True, kw_only=True)
class PcieLink:
    """A PCIe link. An idle one runs at a lower generation than under load, so `max_generation` is what counts."""

    generation: int | None = None  # now
    width: int | None = None  # lanes, now
    max_generation: int | None = None  # of card and slot together
    max_width: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process that holds memory of a GPU."""

    pid: int
    name: str | None = None
    used_bytes: int | None = None  # None: the driver does not state it, as under WSL


@dataclass(frozen=True, slots=True, kw_only=True)
class MigSlice:
    """An instance of a GPU that is partitioned by MIG. A process sees one of them."""

    index: int
    name: str | None = None  # such as NVIDIA A100-SXM4-40GB MIG 3g.20gb
    uuid: str | None = None  # for CUDA_VISIBLE_DEVICES
    total_bytes: int | None = None
    free_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU. NVIDIA's GPUs come first, in NVML's order, then those of other makers."""

    index: int
    name: str | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    capability: str | None = None  # NVIDIA's compute capability, such as 8.6
    driver: str | None = None
    vendor: str = "nvidia"  # nvidia, amd, intel
    backends: tuple[str, ...] = ("cuda", "vulkan")  # of llama.cpp that can use it, the fastest first
    shares_memory: bool = False  # it uses main memory and has little or none of its own
    used_bytes: int | None = None  # by other processes
    reserved_bytes: int | None = None  # by the driver
    processes: tuple[GpuProcess, ...] | None = None  # the largest first
    bandwidth_bytes_s: int | None = None  # of its memory, from bus width and clock, as its maker states it
    uuid: str | None = None
    pci: str | None = None  # address, such as 0000:01:00.0
    pcie: PcieLink | None = None
    power_limit_w: float | None = None
    max_cuda: str | None = None  # the newest CUDA that the driver can run, such as 12.4
    mig: bool | None = None  # partitioned
    slices: tuple[MigSlice, ...] = ()  # MIG instances; only the selected one if a variable selects one
    hidden_by: str = ""  # NAME=VALUE of the variable that hides it from this process
    device_index: int | None = None  # its number in llama.cpp's backend; None: not visible

    @property
    def is_unresponsive(self) -> bool:
        """True for an NVIDIA GPU that NVML does not describe, or that is only found on the PCI bus."""
        return self.vendor == "nvidia" and self.total_bytes is None and self.capability is None

    @property
    def is_worth_building_for(self) -> bool:
        """True if it has its own memory, or is much faster than the CPU whose memory it shares."""
        shares_well = self.vendor == "nvidia" or any(name in (self.name or "") for name in LARGE_SHARED_GPUS)
        return (
            not self.is_unresponsive and self.driver != PASSTHROUGH_DRIVER and (not self.shares_memory or shares_well)
        )

    @property
    def usable_bytes(self) -> int | None:
        """The bytes that one process can still allocate: the free memory, or the emptiest MIG instance's."""
        if not self.mig:
            return self.free_bytes
        return max((each.free_bytes for each in self.slices if each.free_bytes is not None), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unified:
    """Memory that an Apple chip shares between CPU and GPU."""

    chip: str | None = None
    total_bytes: int | None = None
    gpu_limit_bytes: int | None = None  # set by the owner (iogpu.wired_limit_mb); None: the system's default
    working_set_bytes: int | None = (
        None  # what the GPU may use: Metal's figure, else the owner's limit, else the default share
    )
    gpu_cores: int | None = None
    metal: str | None = None  # such as Metal 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Bandwidth:
    """A measurement of the bytes per second that all usable threads together read from main memory."""

    bytes_s: float  # the median
    low_bytes_s: float  # the lower and the upper quartile
    high_bytes_s: float
    threads: int
    measured_at: float  # seconds since 1970
    others_share: float | None = None  # share of all CPU time that other processes used meanwhile; None: not known

    @property
    def is_disturbed(self) -> bool:
        """True if other processes used so much CPU time that the machine can probably do better."""
        return (self.others_share or 0.0) > MAX_OTHERS_SHARE


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """The processors, and what this process may use of them."""

    name: str | None = None
    architecture: str | None = None
    logical_cores: int | None = None
    physical_cores: int | None = None
    allowed_cores: int | None = None  # logical cores in this process's affinity
    quota_cores: float | None = None  # CPU time that the cgroup grants, in cores; None: no limit
    usable_threads: int = 1
    clock_mhz: float | None = None  # the highest if the system states it, else the current one
    vector_extensions: tuple[str, ...] | None = None
    last_level_cache_bytes: int | None = None  # of all caches of the last level together
    bandwidth: Bandwidth | None = None  # None: never measured on this machine

    @property
    def has_avx2(self) -> bool:
        return "avx2" in (self.vector_extensions or ())


@dataclass(frozen=True, slots=True, kw_only=True)
class MainMemory:
    """Main memory, as far as the cgroup grants it."""

    total_bytes: int | None = None
    available_bytes: int | None = None
    limit_bytes: int | None = None  # the cgroup's; None: no limit
    installed_bytes: int | None = None  # without the cgroup's limit
    swap_total_bytes: int | None = None
    swap_free_bytes: int | None = None
    huge_pages: str | None = None  # Linux's transparent huge pages: always, madvise or never


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaCpp:
    """The installed llama-cpp-python, described without loading it."""

    version: str | None = None
    backends: tuple[str, ...] = ()  # cpu, cuda, metal, ...
    folder: Path | None = None
    ggml_version: str | None = None  # from the names of its files


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """The operating system, and the WSL or the container that it runs in."""

    name: str | None = None  # such as Debian GNU/Linux 12 (bookworm), macOS 15.1
    kernel: str | None = None
    distribution: str | None = None  # ID of os-release: debian, fedora, arch
    wsl: int | None = None  # 1 or 2 under the Windows Subsystem for Linux
    container: str | None = None  # docker, podman, kubernetes, lxc, ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Everything that `probe` knows about this machine."""

    gpus: tuple[Gpu, ...]
    unified: Unified | None
    cpu: Cpu
    memory: MainMemory
    cache_free_bytes: int | None  # on the disk that holds the cache folder
    llama_cpp: LlamaCpp
    hub_free_bytes: int | None = None  # on the disk that holds the hub's cache
    system: System = System()
    unanswered: tuple[str, ...] = ()  # a sentence for each driver that did not answer

    @property
    def lends_memory(self) -> bool:
        """True if the GPUs use main memory, so that their data reduces it.

        Apple's GPUs do. NVIDIA's do if every one of them shares memory.
        """
        nvidia = [gpu for gpu in self.gpus if gpu.vendor == "nvidia" and not gpu.is_unresponsive]
        return self.unified is not None or (bool(nvidia) and all(gpu.shares_memory for gpu in nvidia))

    def backend_of(self, gpu: Gpu) -> str | None:
        """Return the backend of this llama.cpp that can use the GPU; None if it was built without one."""
        return next((name for name in gpu.backends if name in self.llama_cpp.backends), None)


def to_json(machine: Machine) -> dict[str, object]:
    """Return the object that `eaglelocal probe --json` prints; unknown values are null."""
    library, folder = machine.llama_cpp, machine.llama_cpp.folder
    return {
        "gpus": [
            {**asdict(gpu), "backend": machine.backend_of(gpu), "room_bytes": gpu.usable_bytes} for gpu in machine.gpus
        ],
        "unified": asdict(machine.unified) if machine.unified else None,
        "cpu": asdict(machine.cpu),
        "memory": asdict(machine.memory),
        "disk": {"cache_free_bytes": machine.cache_free_bytes, "hub_free_bytes": machine.hub_free_bytes},
        "llama_cpp": {**asdict(library), "backends": list(library.backends), "folder": folder and str(folder)},
        "system": asdict(machine.system),
        "unanswered": list(machine.unanswered),
    }


def runs_on_battery() -> bool:
    """Return whether a battery feeds the machine; False where there is none, or the system does not tell."""
    try:
        import psutil

        battery = psutil.sensors_battery()
    except Exception:  # drivers report nonsense in many ways
        return False
    return battery is not None and battery.power_plugged is False
