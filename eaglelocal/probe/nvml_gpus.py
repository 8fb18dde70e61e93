"""NVIDIA's GPUs as NVML describes them; what a failing call leaves open is None.

`ask_gpus` runs in our process, `main` in a child. A driver that hangs (a GPU that fell off the bus, a reset that does
not end) makes its process unkillable, which must not happen to ours. Callers check `has_driver` first and start no
process without one.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePath
from typing import Any, TypeVar

from eaglelocal.probe.machine import Gpu, GpuProcess, Machine, MigSlice, PcieLink
from eaglelocal.probe.subprocess_calls import NoAnswer, attempt_or, run_module

T = TypeVar("T")
U = TypeVar("U")

CLOCK_MEM = 2  # NVML_CLOCK_MEM
TRANSFERS_PER_CLOCK = 2  # NVML states the clock of every memory as for double data rate
SHARED_MEMORY_NAMES = ("GB10", "Orin", "Thor", "Xavier", "Tegra")  # GPUs that use main memory
MAX_SLICES = 16  # the largest GPUs have seven; a driver may state any number
UNKNOWN_BYTES = (1 << 64) - 1  # NVML_VALUE_NOT_AVAILABLE
MODULE = "eaglelocal.probe.nvml_gpus"
TIMEOUT_S = 8.0  # a driver that is not kept loaded takes a second or two per GPU
_POLL_S = 0.5  # between checks whether the parent has ended
DRIVER_FILES = ("proc/driver/nvidia/version", "dev/nvidiactl", "dev/dxg", "dev/nvgpu", "dev/nvhost-ctrl")


def has_driver(root: Path = Path("/"), platform: str = sys.platform) -> bool:
    """Return whether NVML may answer here; True if that cannot be checked."""
    if platform == "darwin":
        return False
    return not platform.startswith("linux") or any((root / file).exists() for file in DRIVER_FILES)


def ask_gpus(*, timeout_s: float = TIMEOUT_S) -> tuple[Gpu, ...]:
    """Return NVML's GPUs. Raises NoAnswer if the driver hangs, or its library crashes the child process."""
    try:
        ran = run_module(MODULE, timeout_s=timeout_s)
    except NoAnswer:
        raise NoAnswer(f"NVIDIA's driver did not answer within {timeout_s:g} s") from None
    if ran is None or ran.returncode:
        raise NoAnswer("NVIDIA's library could not be used" + (f" (code {ran.returncode})" if ran else ""))
    gpus: tuple[Gpu, ...] = pickle.loads(ran.stdout)  # written by our own child process
    return gpus


def main() -> None:
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    sys.stdout.buffer.write(pickle.dumps(read_gpus(import_nvml())))


def _end_with_parent(parent: int) -> None:
    """Exit when the parent has ended. NVML runs without the GIL, so this thread also runs while the driver hangs."""
    while os.getppid() == parent:
        time.sleep(_POLL_S)
    os._exit(1)


def import_nvml() -> Any:
    """Return pynvml; None if it is not installed, or broken."""
    try:
        import pynvml
    except Exception:
        return None
    return pynvml


def begin_nvml(nvml: Any) -> Any:
    """Return the module after its start; None without one, or without a driver that fits."""
    try:
        nvml.nvmlInit()
    except Exception:  # NVML's own errors share no base class that is safe to import here
        return None
    return nvml


def ask(nvml: Any, call: str, *arguments: object) -> Any:
    """Return the answer of a call of pynvml; None where it fails, or is missing in an old pynvml."""
    try:
        return getattr(nvml, call)(*arguments)
    except Exception:  # one missing figure must not prevent the others
        return None


def read_gpus(nvml: Any) -> tuple[Gpu, ...]:
    """Return NVIDIA's GPUs; empty without a driver. `nvml`: as imported, or None."""
    if begin_nvml(nvml) is None:
        return ()
    driver = decode(ask(nvml, "nvmlSystemGetDriverVersion"))
    max_cuda = _convert(format_cuda, ask(nvml, "nvmlSystemGetCudaDriverVersion"))
    num_devices = ask(nvml, "nvmlDeviceGetCount") or 0
    unknown = [Gpu(index=index, driver=driver, max_cuda=max_cuda) for index in range(num_devices)]
    gpus = tuple(attempt_or(partial(_read_device, nvml, gpu), gpu) for gpu in unknown)
    ask(nvml, "nvmlShutdown")
    return gpus


def format_cuda(version: int) -> str:
    """Return a version of CUDA as text: 12.4 for 12040."""
    return f"{version // 1000}.{version % 1000 // 10}"


def format_pci_address(bus_id: str) -> str:
    """Return an address as the kernel writes it: 0000:0a:00.0 for 00000000:0A:00.0."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def compute_bandwidth(bus_bits: int, clock_mhz: int) -> int:
    """Return a memory's bytes per second: 936 GB/s for 384 bits at 9751 MHz (an RTX 3090)."""
    return bus_bits * clock_mhz * 1_000_000 * TRANSFERS_PER_CLOCK // 8


def _read_device(nvml: Any, gpu: Gpu) -> Gpu:
    """Return the GPU with everything that its driver states."""
    handle = ask(nvml, "nvmlDeviceGetHandleByIndex", gpu.index)
    if handle is None:  # it fell off the bus, or access is forbidden
        return gpu
    name = decode(ask(nvml, "nvmlDeviceGetName", handle))
    memory, reserved = _read_memory(nvml, handle)
    limit_mw = ask(nvml, "nvmlDeviceGetEnforcedPowerLimit", handle)
    mig = attempt_or(lambda: bool(next(iter(ask(nvml, "nvmlDeviceGetMigMode", handle)))), None)
    return dataclasses.replace(
        gpu,
        name=name,
        total_bytes=memory.total if memory else None,
        free_bytes=memory.free if memory else None,
        used_bytes=max(0, memory.total - memory.free - (reserved or 0)) if memory else None,
        reserved_bytes=reserved,
        shares_memory=any(word in (name or "") for word in SHARED_MEMORY_NAMES),
        capability=_convert("{0[0]}.{0[1]}".format, ask(nvml, "nvmlDeviceGetCudaComputeCapability", handle)),
        processes=_read_processes(nvml, handle),
        bandwidth_bytes_s=_read_bandwidth(nvml, handle),
        uuid=decode(ask(nvml, "nvmlDeviceGetUUID", handle)),
        pci=_convert(format_pci_address, decode(getattr(ask(nvml, "nvmlDeviceGetPciInfo", handle), "busId", None))),
        pcie=_read_link(nvml, handle),
        power_limit_w=None if limit_mw is None else limit_mw / 1000,
        mig=mig,
        slices=_read_slices(nvml, handle) if mig else (),
    )


def _read_memory(nvml: Any, handle: object) -> tuple[Any, int | None]:
    """Return the GPU's memory and the driver's reserve; None for older drivers, which count the reserve as used."""
    memory = ask(nvml, "nvmlDeviceGetMemoryInfo", handle, getattr(nvml, "nvmlMemory_v2", None))
    if memory is not None and memory.total:
        return memory, max(0, memory.total - memory.free - memory.used)
    memory = ask(nvml, "nvmlDeviceGetMemoryInfo", handle)
    return (memory, None) if memory is not None and memory.total else (None, None)


def _read_bandwidth(nvml: Any, handle: object) -> int | None:
    width = ask(nvml, "nvmlDeviceGetMemoryBusWidth", handle)
    clock = ask(nvml, "nvmlDeviceGetMaxClockInfo", handle, CLOCK_MEM)
    return compute_bandwidth(width, clock) if width and clock else None


def _read_link(nvml: Any, handle: object) -> PcieLink | None:
    link = PcieLink(
        generation=ask(nvml, "nvmlDeviceGetCurrPcieLinkGeneration", handle),
        width=ask(nvml, "nvmlDeviceGetCurrPcieLinkWidth", handle),
        max_generation=ask(nvml, "nvmlDeviceGetMaxPcieLinkGeneration", handle),
        max_width=ask(nvml, "nvmlDeviceGetMaxPcieLinkWidth", handle),
    )
    return None if link == PcieLink() else link


def _read_processes(nvml: Any, handle: object) -> tuple[GpuProcess, ...] | None:
    """Return the other processes that compute or draw, each once; None if the driver does not state them."""
    calls = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses")
    answers = [attempt_or(partial(list[Any], ask(nvml, call, handle)), None) for call in calls]
    lists = [answer for answer in answers if answer is not None]
    if not lists:
        return None
    used: dict[int, int | None] = {}
    for process in itertools.chain.from_iterable(lists):
        held = None if process.usedGpuMemory in (None, UNKNOWN_BYTES) else process.usedGpuMemory
        used[process.pid] = max((n for n in (used.get(process.pid), held) if n is not None), default=None)
    used.pop(os.getpid(), None)
    found = (GpuProcess(pid=pid, name=_read_process_name(nvml, pid), used_bytes=held) for pid, held in used.items())
    return tuple(sorted(found, key=lambda process: (-(process.used_bytes or 0), process.pid)))


def _read_process_name(nvml: Any, pid: int) -> str | None:
    """Return a process's name without folders and arguments, which may be private."""
    name = decode(ask(nvml, "nvmlSystemGetProcessName", pid))
    words = (name or "").split()
    return PurePath(words[0].replace("\\", "/")).name or None if words else None


def _read_slices(nvml: Any, handle: object) -> tuple[MigSlice, ...]:
    num_slices = ask(nvml, "nvmlDeviceGetMaxMigDeviceCount", handle) or 0
    indices = range(min(num_slices, MAX_SLICES))
    handles = ((index, ask(nvml, "nvmlDeviceGetMigDeviceHandleByIndex", handle, index)) for index in indices)
    return tuple(_read_slice(nvml, index, part) for index, part in handles if part is not None)


def _read_slice(nvml: Any, index: int, handle: object) -> MigSlice:
    memory, _ = _read_memory(nvml, handle)
    return MigSlice(
        index=index,
        name=decode(ask(nvml, "nvmlDeviceGetName", handle)),
        uuid=decode(ask(nvml, "nvmlDeviceGetUUID", handle)),
        total_bytes=memory.total if memory else None,
        free_bytes=memory.free if memory else None,
    )


def _convert(change: Callable[[T], U], value: T | None) -> U | None:
    return None if value is None else attempt_or(lambda: change(value), None)


def decode(value: str | bytes | None) -> str | None:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


# ---- the effect of environment variables that hide and reorder GPUs for this process
#
# NVML ignores these variables and numbers GPUs by their place on the bus. CUDA and ROCm obey them, and CUDA's first
# GPU is the fastest one. Variables of Vulkan and SYCL are not read: their numbers depend on drivers that are not
# asked here.
MAX_DIGITS = 9  # longer numbers are not read
CUDA_ORDER, BUS_ORDER = "CUDA_DEVICE_ORDER", "PCI_BUS_ID"
# filters of each backend, which apply one after the other; of several names the first that is set counts
FILTERS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "cuda": (("CUDA_VISIBLE_DEVICES",),),
    "hip": (("ROCR_VISIBLE_DEVICES",), ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")),
}


def apply_visibility(machine: Machine, environ: Mapping[str, str]) -> Machine:
    """Return the machine with `hidden_by` and `device_index` set for every GPU that answers and llama.cpp can use."""
    served = [gpu for gpu in machine.gpus if not gpu.is_unresponsive]
    seen: dict[int, Gpu] = {}
    for backend in dict.fromkeys(machine.backend_of(gpu) for gpu in served):
        if backend is not None:
            cards = [gpu for gpu in served if machine.backend_of(gpu) == backend]
            seen |= {gpu.index: gpu for gpu in _filter_backend(backend, cards, environ)}
    return dataclasses.replace(machine, gpus=tuple(seen.get(gpu.index, gpu) for gpu in machine.gpus))


def _filter_backend(backend: str, cards: Sequence[Gpu], environ: Mapping[str, str]) -> Iterable[Gpu]:
    left = order_as_cuda(cards) if backend == "cuda" and environ.get(CUDA_ORDER) != BUS_ORDER else list(cards)
    for names in FILTERS.get(backend, ()):
        name = next((name for name in names if name in environ), None)
        if name is None:
            continue
        kept = select_gpus(environ[name], left)
        numbers = {gpu.index for gpu in kept}
        why = f"{name}={environ[name]}"
        yield from (dataclasses.replace(gpu, hidden_by=why) for gpu in left if gpu.index not in numbers)
        left = kept
    yield from (dataclasses.replace(gpu, device_index=index) for index, gpu in enumerate(left))


def order_as_cuda(cards: Sequence[Gpu]) -> list[Gpu]:
    """Return the GPUs in CUDA's own order: the fastest one, then the others as on the bus.

    CUDA does not document how it compares them; memory bandwidth stands in for it.
    """
    first = max(cards, key=lambda gpu: gpu.bandwidth_bytes_s or 0)
    return [first, *(gpu for gpu in cards if gpu is not first)]


def select_gpus(text: str, cards: Sequence[Gpu]) -> list[Gpu]:
    """Return the GPUs that a variable names, in its order, up to the first unknown name; none if one is named twice.

    Of a partitioned GPU the first named instance counts. All GPUs if a name is a UUID and the driver states none.
    """
    found: list[Gpu] = []
    for word in text.split(","):
        name = word.strip()
        if name.upper().startswith(("GPU-", "MIG-")) and not any(gpu.uuid for gpu in cards):
            return list(cards)
        gpu = _find_named(name, cards)
        if gpu is None:
            return found
        if gpu.index in (other.index for other in found):
            return found if gpu.mig else []  # a process gets one instance of a partitioned card
        found.append(gpu)
    return found


def _find_named(name: str, cards: Sequence[Gpu]) -> Gpu | None:
    if name.isdecimal():
        return cards[int(name)] if len(name) <= MAX_DIGITS and int(name) < len(cards) else None
    if name.startswith("MIG-GPU-"):  # of older drivers: MIG-GPU-UUID/3/0, where the instance has no UUID
        return _find_by_uuid(name.removeprefix("MIG-").partition("/")[0], cards)
    if name.startswith("MIG-"):
        parts = [(gpu, part) for gpu in cards for part in gpu.slices if part.uuid == name]
        return dataclasses.replace(parts[0][0], slices=(parts[0][1],)) if parts else None
    return _find_by_uuid(name, cards) if name.startswith("GPU-") else None


def _find_by_uuid(prefix: str, cards: Sequence[Gpu]) -> Gpu | None:
    """Return the only GPU whose UUID begins with this; None if there is none, or several."""
    found = [gpu for gpu in cards if (gpu.uuid or "").startswith(prefix)]
    return found[0] if len(found) == 1 else None


if __name__ == "__main__":
    main()
