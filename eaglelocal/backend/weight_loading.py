"""Decide which weights stay mapped from the file, llama.cpp's default, which move into huge pages, and which are read.

Mapped weights lie in small pages. Verifying reads 16-bit weights several rows at a time, which is slower from small
pages than from huge ones (tests/measures/pages.py), so they move once the model is loaded (weight_pages.py); for most
quantized types unpacking takes longer than finding the next page. Some quantized types llama.cpp repacks for the CPU:
they are copied anyway, and when mapped, the file would occupy memory too.

Moving is not worth it for a single answer. Both are for weights used by the CPU alone, and since such memory cannot be
dropped like a file's pages, plenty must be free. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from eaglelocal.memory.budget import RAM, FreeMemory

FLOAT_TYPES = ("F32", "F16", "BF16")
REPACKED_TYPES = ("Q4_0", "Q4_K", "IQ4_NL", "MXFP4")  # repacked for a CPU with AVX2
MAX_SHARE = 0.5  # of the free memory


def is_read(main_type: str, *, huge_pages: bool, repacks: bool) -> bool:
    """Return whether weights of this type are read into memory.

    huge_pages  allocated memory lies in huge pages
    repacks     llama.cpp repacks weights for this CPU
    """
    return huge_pages and repacks and main_type in REPACKED_TYPES


def is_moved(main_type: str, *, huge_pages: str | None, is_brief: bool) -> bool:
    """Return whether mapped weights of this type move into huge pages.

    huge_pages  the system's setting: always, madvise or never; None if it has none
    is_brief    the model is loaded for a single answer
    """
    return huge_pages in ("always", "madvise") and not is_brief and main_type in FLOAT_TYPES


def has_plenty(weights_bytes: int, free_memory: Sequence[FreeMemory], gpu_layers: int | None) -> bool:
    """Return whether memory is free for a copy of the weights, with as much to spare, and no GPU computes with them."""
    ram = next(device for device in free_memory if device.device == RAM)
    is_on_cpu = len(free_memory) == 1 or gpu_layers == 0
    return is_on_cpu and ram.free_bytes is not None and weights_bytes <= MAX_SHARE * ram.free_bytes
