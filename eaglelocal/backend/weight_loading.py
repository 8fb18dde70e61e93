"""Decide which weights are read into allocated memory, and which are mapped from the file, llama.cpp's default.

Mapped weights lie in small pages. Verifying reads 16-bit weights several rows at a time, which is slower from small
pages than from huge ones (tests/measures/pages.py); for most quantized types unpacking takes longer than finding the
next page. Some quantized types llama.cpp repacks for the CPU: they are copied anyway, and when mapped, the file would
occupy memory too.

Reading takes time, most of all in a virtual machine that gets its memory only then: too long for a single answer. It
is for weights used by the CPU alone, and since read memory cannot be dropped like a file's pages, plenty must be free.
Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from eaglelocal.memory.budget import RAM, FreeMemory

FLOAT_TYPES = ("F32", "F16", "BF16")
REPACKED_TYPES = ("Q4_0", "Q4_K", "IQ4_NL", "MXFP4")  # repacked for a CPU with AVX2
MAX_SHARE = 0.5  # of the free memory


def types_to_read(*, huge_pages: bool, repacks: bool, is_brief: bool) -> tuple[str, ...]:
    """Return the types of weights to read.

    huge_pages  allocated memory lies in huge pages
    repacks    llama.cpp repacks weights for this CPU
    is_brief    the model is loaded for a single answer
    """
    if not huge_pages:
        return ()
    return (*(() if is_brief else FLOAT_TYPES), *(REPACKED_TYPES if repacks else ()))


def should_read_weights(weights_bytes: int, free_memory: Sequence[FreeMemory], gpu_layers: int | None) -> bool:
    """Return whether plenty of memory is free, and no GPU computes with the weights."""
    ram = next(device for device in free_memory if device.device == RAM)
    is_on_cpu = len(free_memory) == 1 or gpu_layers == 0
    return is_on_cpu and ram.free_bytes is not None and weights_bytes <= MAX_SHARE * ram.free_bytes
