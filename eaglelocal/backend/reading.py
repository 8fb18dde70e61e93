"""Which weights are read into memory of their own, and which are mapped from the file, as llama.cpp does by itself.

Mapped, weights lie in small pages. Those of 16 bits are read several rows at a time, so that verifying four to eight
tokens takes 7 to 15 % longer from there than from huge pages (tests/measures/pages.py); most quantized ones do not
mind, for unpacking them takes longer than finding the next page. Some of those llama.cpp lays out anew for the
processor: they are copied anyway, and mapped, the file would lie in memory beside them.

Reading costs 0.3 s a GiB, and 2 s in a virtual machine that gets the memory only now: too much for one answer. It is
for weights that the processor alone computes with, and memory that is read can not be dropped as a file's pages can,
so there must be plenty. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from eaglelocal.backend.fit import RAM, Room

WIDE = ("F32", "F16", "BF16")
LAID_OUT = ("Q4_0", "Q4_K", "IQ4_NL", "MXFP4")  # for a processor with AVX2
MOST_SHARE = 0.5  # of the free memory


def types_to_read(*, huge_pages: bool, lays_out: bool, is_brief: bool) -> tuple[str, ...]:
    """Types of weights. `lays_out`: llama.cpp has layouts for this processor; `is_brief`: for one answer."""
    if not huge_pages:
        return ()
    return (*(() if is_brief else WIDE), *(LAID_OUT if lays_out else ()))


def has_room(weights_bytes: int, rooms: Sequence[Room], gpu_layers: int | None) -> bool:
    """Is there plenty of memory, and no GPU that computes with the weights?"""
    ram = next(room for room in rooms if room.device == RAM)
    is_alone = len(rooms) == 1 or gpu_layers == 0
    return is_alone and ram.free_bytes is not None and weights_bytes <= MOST_SHARE * ram.free_bytes
