"""The memory of this machine as llama.cpp sees it: RAM, and each GPU under llama.cpp's own name.

NVML numbers devices in another order, ignores which of them are hidden, and sees only NVIDIA's.
"""

from __future__ import annotations

import ctypes as C

from eaglelocal.backend.llama_library import LlamaLibrary, bind
from eaglelocal.memory.budget import RAM, FreeMemory

GPU, INTEGRATED_GPU = 1, 2  # ggml_backend_dev_type; CPU and BLAS compute in RAM


def free_memory(library: LlamaLibrary, *, ram_bytes: int | None, unified: bool) -> tuple[FreeMemory, ...]:
    """Return the free memory of each device, RAM first.

    unified  all GPUs work in RAM, as on Apple chips and NVIDIA's GB10
    """
    native = C.CDLL(library.api._lib._name)
    get_type = bind(native, "ggml_backend_dev_type", [C.c_void_p], C.c_int)
    devices = [library.device_at(i) for i in range(library.num_devices())]
    gpus = [
        FreeMemory(
            library.device_name(device).decode(),
            free_bytes(native, device),
            in_ram=unified or get_type(device) == INTEGRATED_GPU,
        )
        for device in devices
        if get_type(device) in (GPU, INTEGRATED_GPU)
    ]
    return (FreeMemory(RAM, ram_bytes), *gpus)


def free_bytes(native: C.CDLL, device: int) -> int | None:
    """Return the free bytes of a device; None if it does not report them (then it gives a total of 0)."""
    get_memory = bind(native, "ggml_backend_dev_memory", [C.c_void_p, C.c_void_p, C.c_void_p], None)
    free, total = C.c_size_t(), C.c_size_t()
    get_memory(device, C.byref(free), C.byref(total))
    return free.value if total.value else None
