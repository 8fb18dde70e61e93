"""The effect of environment variables that hide and reorder GPUs for this process.

NVML ignores these variables and numbers GPUs by their place on the bus. CUDA and ROCm obey them, and CUDA's first GPU
is the fastest one. Variables of Vulkan and SYCL are not read: their numbers depend on drivers that are not asked here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from eaglelocal.probe.machine import Gpu, Machine

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
