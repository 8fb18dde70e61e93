"""Describe a machine for the planner: the free memory, bandwidth and arithmetic of each device.

Built from a probe of this machine or from a catalog entry. `notes` names every assumed figure, because predictions
depend on it. Free memory is what is free now, without what other processes hold.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from eaglelocal.catalog.catalog import CPU, CUDA, JOINED, METAL, VULKAN, KnownMachine
from eaglelocal.catalog.near_names import MAKERS
from eaglelocal.core.amounts import GIB
from eaglelocal.core.records import dataclass
from eaglelocal.core.run_options import RPC_DEVICE, TENSOR, RunOptions, suggest_split
from eaglelocal.errors import UsageError
from eaglelocal.memory.budget import RAM, FreeMemory, Needs, device_load
from eaglelocal.memory.placement import check_tensor_gpus, choose_gpus
from eaglelocal.memory.tensor_moves import check_overrides
from eaglelocal.probe.machine import Gpu, Machine, Unified
from eaglelocal.probe.rpc_servers import RpcServer

MEGA, GIGA, TERA = 10**6, 10**9, 10**12
DRIVER_BYTES = int(0.6 * GIB)  # of a card's memory that its driver keeps
SYSTEM_BYTES, SYSTEM_SHARE = 4 * GIB, 0.25  # RAM that a running system and its page cache keep
MORE_BEHIND_BYTES, MORE_SHARE = 16 * GIB, 1 / 16  # and further RAM: this share of what is above 16 GiB
FLOPS_PER_BYTE: Mapping[str, float] = {CUDA: 75.0, VULKAN: 75.0, METAL: 34.0}  # fp16, if not stated: RTX 3090, M2 Max
UNKNOWN_GPU_BYTES_S = 250.0 * GIGA  # of a GPU that no table names: as slow as current slow ones
CYCLE_FLOPS = 5.0  # per cycle of a core, on quantized weights that are not repacked
USUAL_CLOCK = 3.2 * GIGA  # cycles a second, if the processor does not report it
KNOWN_CORES = 8  # of a catalog machine
THREAD_BYTES_S, DDR4_BYTES_S = 8.0 * GIGA, 38.0 * GIGA  # of unmeasured RAM: per thread, and at most
NO_MODEL = MAKERS | {"graphics", "generation", "workstation", "edition", "r", "tm"}  # not of a model
UNPUBLISHED = frozenset({"intel", "arc", "laptop", "mobile", "m5", "card"})  # card: any with so much memory
ASSUMED = "assumed"  # `field_confidence` of catalog entries whose RAM was assumed
MOST_LENT = 0.75  # share of RAM that a system can lend its integrated GPU
SUSTAINED_SHARE = 0.69  # of the nominal bandwidth of memory
NAMES: Mapping[str, str] = {"cuda": "CUDA", "hip": "ROCm", "vulkan": "Vulkan", "sycl": "SYCL", "metal": "MTL"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    """A device that holds weights and computes with them: a GPU, or RAM with the CPU."""

    name: str  # as llama.cpp calls it, or RAM
    label: str  # as people call it
    kind: str  # cuda, vulkan (cards of other makers, by any backend), metal or cpu: which kernels run there
    total_bytes: int | None
    free_bytes: int | None  # None: unknown, so nothing is planned for it
    bytes_s: float  # peak memory bandwidth; of a CPU: sustained
    flops: float  # of a GPU: peak fp16; of a CPU: llama.cpp on quantized weights
    shares_ram: bool = False
    num_cards: int = 1  # equal ones that divide each layer and compute at once
    link: RpcServer | None = None  # the rpc-server that it belongs to
    capability: float | None = None  # NVIDIA's compute capability; None: unknown, or another maker
    is_published: bool = True  # speeds of such devices were published, to which predictions are fitted
    has_layouts: bool = True  # quantized weights are repacked, and their rows cheap, on this CPU (known of AVX2)

    @property
    def is_gpu(self) -> bool:
        return self.name != RAM


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSpec:
    """A machine: RAM with the CPU, and the GPUs that llama.cpp can use."""

    name: str
    host: DeviceSpec
    gpus: tuple[DeviceSpec, ...] = ()
    notes: tuple[str, ...] = ()
    assumed: str = ""  # size and speed of the RAM, for people, if the catalog assumed them
    is_here: bool = False
    has_attention_kernel: bool = True  # our own flash attention runs on its processor
    probed: Machine | None = None  # the probe, if it is this machine: the key of its measurements

    @property
    def devices(self) -> tuple[DeviceSpec, ...]:
        return (*self.gpus, self.host)

    @property
    def free_memory(self) -> tuple[FreeMemory, ...]:
        """Return the free memory of each device, RAM first."""
        return tuple(FreeMemory(each.name, each.free_bytes, each.shares_ram) for each in (self.host, *self.gpus))

    def device(self, name: str) -> DeviceSpec:
        return next(each for each in self.devices if each.name == name)


# ---- from the catalog
def make_known_spec(machine: KnownMachine) -> MachineSpec:
    """Return a catalog machine with nothing but its operating system running."""
    host = DeviceSpec(
        name=RAM,
        label="RAM",
        kind=CPU,
        total_bytes=machine.ram_bytes,
        free_bytes=machine.ram_bytes - system_bytes(machine.ram_bytes),
        bytes_s=machine.host_bandwidth_gb_s * GIGA * SUSTAINED_SHARE,
        flops=KNOWN_CORES * USUAL_CLOCK * CYCLE_FLOPS,
        is_published=not machine.is_own,
    )
    speed = f"{machine.host_bandwidth_gb_s:.0f} GB/s"
    return MachineSpec(
        name=machine.name,
        host=host,
        gpus=tuple(_known_gpus(machine)),
        notes=(*filter(None, [machine.notes.rstrip(".")]), "free memory as if only the system were running"),
        assumed=f"{machine.ram_bytes / GIB:.0f} GiB at {speed}"
        if machine.field_confidence.get("host") == ASSUMED
        else "",
    )


def replace_ram(machine: MachineSpec, num_bytes: int) -> MachineSpec:
    """Give a catalog machine this many bytes of RAM, at its assumed speed."""
    speed = machine.assumed.partition(" at ")[2]
    host = replace(machine.host, total_bytes=num_bytes, free_bytes=num_bytes - system_bytes(num_bytes))
    return replace(machine, host=host, assumed=f"{num_bytes / GIB:.0f} GiB at {speed}" if speed else "")


def _known_gpus(machine: KnownMachine) -> Iterable[DeviceSpec]:
    """Yield the GPUs of the machine, then those of the others in it."""
    numbers: Counter[str] = Counter()  # of devices that each backend has so far
    cards = [each for each in (machine, *machine.others) if each.has_gpu for _ in range(max(each.num_gpus, 1))]
    for index, card in enumerate(cards):
        bytes_s = card.bandwidth_gb_s * card.reached_share * GIGA
        shares = card.shares_memory
        yield DeviceSpec(
            name=f"{NAMES[card.kind]}{numbers[card.kind]}",
            label="GPU" if len(cards) < 2 else f"GPU {index}",
            kind=card.kind,
            total_bytes=card.memory_bytes,
            free_bytes=(card.gpu_limit_bytes or card.memory_bytes) if shares else card.memory_bytes,
            bytes_s=bytes_s,
            flops=card.fp16_tflops * TERA if card.fp16_tflops else bytes_s * FLOPS_PER_BYTE[card.kind],
            shares_ram=shares,
            capability=read_capability(card.capability),
            is_published=is_published(card.name.partition(JOINED)[0], card),
        )
        numbers[card.kind] += 1


def is_published(name: str, entry: KnownMachine | None) -> bool:
    """Return whether speeds of such devices were published: of devices in the catalog, but not of Intel's, of the
    slower cards of laptops, or of machines that the user described.
    """
    words = set(re.findall(r"[a-z0-9]+", name.lower()))
    return entry is not None and not entry.is_own and not UNPUBLISHED & words


def read_capability(text: str | None) -> float | None:
    return float(text) if text and re.fullmatch(r"\d+\.\d+", text) else None


def system_bytes(total: int) -> int:
    """Return the bytes that the operating system keeps of RAM of this size."""
    more = int(max(total - MORE_BEHIND_BYTES, 0) * MORE_SHARE)
    return min(SYSTEM_BYTES, int(total * SYSTEM_SHARE)) + more


def add_rpc_devices(machine: MachineSpec, servers: Sequence[RpcServer]) -> MachineSpec:
    """Insert the devices of rpc-servers before the machine's own GPUs, in llama.cpp's order.

    The protocol does not report a device's speed. It is assumed to equal this machine's RAM and processor.
    """
    pairs = [(server, device) for server in servers for device in server.devices]
    added = tuple(
        DeviceSpec(
            name=f"{RPC_DEVICE}{index}",
            label=server.address,
            kind=CPU,
            total_bytes=device.total_bytes,
            free_bytes=device.free_bytes,
            bytes_s=machine.host.bytes_s,
            flops=machine.host.flops,
            link=server,
            has_layouts=False,
        )
        for index, (server, device) in enumerate(pairs)
    )
    return replace(machine, gpus=(*added, *machine.gpus))


def name_places(devices: Sequence[DeviceSpec]) -> str:
    """Name the devices that hold layers beside this machine's RAM: GPUs, rpc-servers, or both."""
    gpus, servers = sum(each.link is None for each in devices), len({each.link for each in devices} - {None})
    counted = (("GPU", gpus), ("rpc-server", servers))
    return " and the ".join(name if count == 1 else f"{name}s" for name, count in counted if count)


# ---- from what was probed
def make_machine_spec(machine: Machine, known: Mapping[str, KnownMachine]) -> MachineSpec:
    """Return this machine as it was probed. `known`: the catalog, for the bandwidth and arithmetic of its GPUs."""
    host, notes = _host(machine)
    gpus: list[DeviceSpec] = []
    numbers: Counter[str] = Counter()  # of devices that each backend has so far
    for gpu in sorted(machine.gpus, key=lambda gpu: gpu.device_index or 0):
        backend = None if gpu.is_unresponsive or gpu.hidden_by else machine.backend_of(gpu)
        name = f"{NAMES[backend]}{numbers[backend]}" if backend else ""
        numbers.update([backend] if backend else [])
        device, said = _gpu(machine, gpu, host, name, known)
        notes += said
        gpus += [device] if device else []
    if machine.unified is not None:
        device, said = _apple(machine, machine.unified, known)
        notes += said
        gpus += [device] if device else []
    chips = [machine.unified.chip or "Apple chip"] if machine.unified else []
    names = [*(gpu.name or "GPU" for gpu in machine.gpus), *chips, machine.cpu.name or "unknown processor"]
    return MachineSpec(
        name=", ".join(names), host=host, gpus=tuple(gpus), notes=tuple(notes), is_here=True, probed=machine
    )


def _host(machine: Machine) -> tuple[DeviceSpec, list[str]]:
    measured, clock_mhz = machine.cpu.bandwidth, machine.cpu.clock_mhz
    notes = []
    if measured is None:
        bytes_s = min(THREAD_BYTES_S * machine.cpu.usable_threads, DDR4_BYTES_S)
        notes.append(f"memory bandwidth was never measured here, {bytes_s / GIGA:.0f} GB/s assumed: `eaglelocal probe`")
    else:
        bytes_s = measured.bytes_s
        if measured.is_disturbed:
            notes.append("memory bandwidth was measured on a busy machine: `eaglelocal probe` measures again")
    memory = machine.memory
    if memory.available_bytes is None:
        notes.append("free main memory is unknown")
    return DeviceSpec(
        name=RAM,
        label="RAM",
        kind=CPU,
        total_bytes=memory.total_bytes,
        free_bytes=memory.available_bytes,
        bytes_s=bytes_s,
        flops=machine.cpu.usable_threads * (clock_mhz * MEGA if clock_mhz else USUAL_CLOCK) * CYCLE_FLOPS,
        is_published=measured is not None,
        has_layouts=machine.cpu.has_avx2,
    ), notes


def _gpu(
    machine: Machine, gpu: Gpu, host: DeviceSpec, device: str, known: Mapping[str, KnownMachine]
) -> tuple[DeviceSpec | None, list[str]]:
    name, free, total = gpu.name or f"GPU {gpu.index}", _free_bytes(machine, gpu), machine.memory.total_bytes
    has_all = _may_have_all(gpu)
    if problem := _not_planned(machine, gpu, free):
        return None, [f"{name} {problem}"]
    entry = find_entry(name, known, (CUDA, VULKAN))
    notes = []
    bytes_s = gpu.bandwidth_bytes_s or (entry.bandwidth_gb_s * GIGA if entry else None)
    if bytes_s is not None and entry is not None:
        bytes_s *= entry.reached_share
    if bytes_s is None:
        bytes_s = host.bytes_s if gpu.shares_memory else UNKNOWN_GPU_BYTES_S
        notes.append(f"the bandwidth of {name} is unknown, {bytes_s / GIGA:.0f} GB/s assumed")
    lent = gpu.total_bytes
    if gpu.shares_memory and not has_all and lent is not None and total is not None and lent < MOST_LENT * total:
        memory = f"{lent / GIB:.0f} GiB of main memory"
        notes.append(f"the kernel lends {name} {memory}; its option ttm.pages_limit can lend more")
    tflops = entry.fp16_tflops if entry else None
    return DeviceSpec(
        name=device,
        label=name,
        kind=CUDA if gpu.vendor == "nvidia" else VULKAN,
        total_bytes=total if has_all else gpu.total_bytes,
        free_bytes=free,
        bytes_s=float(bytes_s),
        flops=tflops * TERA if tflops else float(bytes_s) * FLOPS_PER_BYTE[CUDA],
        shares_ram=gpu.shares_memory,
        capability=read_capability(gpu.capability),
        is_published=is_published(name, entry),
    ), notes


def _free_bytes(machine: Machine, gpu: Gpu) -> int | None:
    """Return the free bytes of a GPU; for an integrated one at most the free RAM and the driver's limit."""
    free, lent = machine.memory.available_bytes, gpu.usable_bytes
    if not gpu.shares_memory:
        return lent
    if free is None or _may_have_all(gpu):
        return free
    return None if lent is None else min(free, lent)


def _may_have_all(gpu: Gpu) -> bool:
    """Return whether a GPU may use all RAM: NVIDIA's integrated ones, of which NVML often reports no memory."""
    return gpu.shares_memory and gpu.vendor == "nvidia"


def _not_planned(machine: Machine, gpu: Gpu, free: int | None) -> str:
    """Return the reason why nothing is planned for a GPU; empty if it is used."""
    if gpu.is_unresponsive:
        return "is not used: it does not answer"
    if machine.backend_of(gpu) is None:
        return f"is not used: llama.cpp here was built without {' or '.join(gpu.backends)}"
    if gpu.hidden_by:
        return f"is not used: {gpu.hidden_by} hides it"
    cards = (each for each in machine.gpus if not (each.shares_memory or each.is_unresponsive or each.hidden_by))
    if gpu.shares_memory and not _may_have_all(gpu) and any(map(machine.backend_of, cards)):
        return "is not used: llama.cpp takes a processor's graphics only where there is no card"
    if gpu.shares_memory and free is None:
        return "is not planned for: it works in the main memory, and how much of that it may have is unknown"
    return "is not planned for: its free memory is unknown" if free is None else ""


def _apple(
    machine: Machine, unified: Unified, known: Mapping[str, KnownMachine]
) -> tuple[DeviceSpec | None, list[str]]:
    name = unified.chip or "Apple GPU"
    if METAL not in machine.llama_cpp.backends:
        return None, [f"the GPU of {name} is not used: llama.cpp here was built without Metal"]
    entry = find_entry(name, known, (METAL,))
    bytes_s = entry.bandwidth_gb_s * entry.reached_share * GIGA if entry else UNKNOWN_GPU_BYTES_S / 2
    notes = [] if entry else [f"the bandwidth of {name} is unknown, {bytes_s / GIGA:.0f} GB/s assumed"]
    return DeviceSpec(
        name="MTL0",
        label=name,
        kind=METAL,
        total_bytes=unified.total_bytes,
        free_bytes=unified.working_set_bytes or unified.gpu_limit_bytes,
        bytes_s=bytes_s,
        flops=bytes_s * FLOPS_PER_BYTE[METAL],
        shares_ram=True,
        is_published=is_published(name, entry),
    ), notes


def find_entry(name: str, known: Mapping[str, KnownMachine], kinds: Sequence[str]) -> KnownMachine | None:
    """Return the single-GPU catalog entry for a driver's name: `NVIDIA GeForce RTX 3090` is not `RTX 3090 Ti`.

    If several have the same name (an Apple chip with more or less memory), take the slowest. None if there is none.
    """
    words = _words(name)
    alike = [
        entry for entry in known.values() if entry.kind in kinds and entry.num_gpus < 2 and _words(entry.name) == words
    ]
    return min(alike, key=lambda entry: entry.bandwidth_gb_s, default=None)


def _words(name: str) -> frozenset[str]:
    """Return the words of a device's name without makers, families and memory sizes."""
    words = re.findall(r"[a-z0-9]+", re.sub(r"(?<!\d)\d+ ?gb?\b", " ", name.lower()))
    return frozenset(words) - NO_MODEL


# ---- what a run may use
def free_held_memory(machine: MachineSpec) -> MachineSpec:
    """Return the machine as if only its system were running; memory that a GPU shares with RAM stays as it is."""

    def freed(device: DeviceSpec) -> DeviceSpec:
        if device.free_bytes is None or device.total_bytes is None or (device.is_gpu and device.shares_ram):
            return device
        system = DRIVER_BYTES if device.is_gpu else system_bytes(device.total_bytes)
        return replace(device, free_bytes=max(device.free_bytes, device.total_bytes - system))

    return replace(machine, host=freed(machine.host), gpus=tuple(map(freed, machine.gpus)))


def subtract_other_models(machine: MachineSpec, held: Needs) -> MachineSpec:
    """Reduce the machine's free memory by the memory that other models hold."""

    def left(device: DeviceSpec, room: FreeMemory) -> DeviceSpec:
        if device.free_bytes is None:
            return device
        held_bytes = device_load(room, held, machine.free_memory).total
        return replace(device, free_bytes=max(device.free_bytes - held_bytes, 0))

    host, *gpus = map(left, (machine.host, *machine.gpus), machine.free_memory)
    return replace(machine, host=host, gpus=tuple(gpus))


PROCESSOR = "CPU"  # as llama.cpp names it


def name_computing(machine: MachineSpec, options: RunOptions) -> tuple[str, ...]:
    """Return the names of the devices that compute layers, or RAM. `machine`: with the GPUs that the options allow."""
    return tuple(gpu.name for gpu in machine.gpus if options.gpu_layers != 0) or (RAM,)


def select_gpus(machine: MachineSpec, options: RunOptions) -> MachineSpec:
    """Reduce the machine to the GPUs that the options allow. Raises UsageError if it lacks one of them."""
    gpus = {gpu.name: gpu for gpu in machine.gpus}
    for name in [] if options.device is None else [part.strip() for part in options.device.split(",")]:
        if name not in gpus and name != PROCESSOR:
            raise UsageError(f"--device: there is no device {name}", hint=f"one of: {', '.join([*gpus, PROCESSOR])}")
    used = choose_gpus(machine.free_memory, device=options.device, split=options.split_mode)
    if options.split_mode == TENSOR:
        check_tensor_gpus(len(used))
    check_overrides(options.overrides, (room.device for room in used), options.split_mode)
    shares = options.shares
    if shares and len(shares) != len(used):
        names = ", ".join(room.device for room in used) or "no GPU"
        raise UsageError(
            f"--split {options.split} gives {len(shares)} shares, but this run uses {names}",
            hint=suggest_split(len(used)),
        )
    return replace(machine, gpus=tuple(gpus[room.device] for room in used))
