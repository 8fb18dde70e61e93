"""Decide which weights stay mapped from the file (llama.cpp's default), move into huge pages, or are read into memory.

Mapped weights lie in small pages. Verifying reads 16-bit weights several rows at a time, which is slower from small
pages than from huge ones (tests/measures/pages.py), so they move once the model is loaded; for most quantized types
unpacking takes longer than finding the next page. llama.cpp repacks some quantized types for the CPU, which copies them
anyway; if they were mapped, the file would occupy memory too.

Moving is not worth it for a single answer. Moving and reading are for weights that only the CPU uses. The system cannot
drop such memory like a file's pages, so plenty must be free. Pure.
"""

from __future__ import annotations

import contextlib
import ctypes as C
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from eaglelocal.backend.llama_library import LlamaLibrary
from eaglelocal.backend.native_step import get_function, load_native
from eaglelocal.gguf.upper_layers import UpperLayers
from eaglelocal.memory.budget import RAM, FreeMemory
from eaglelocal.processes.this_process import BackgroundWork, lower_thread_priority

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
    """Return whether there is memory for a copy of the weights and as much to spare, and no GPU computes with them."""
    ram = next(device for device in free_memory if device.device == RAM)
    is_on_cpu = len(free_memory) == 1 or gpu_layers == 0
    return is_on_cpu and ram.free_bytes is not None and weights_bytes <= MAX_SHARE * ram.free_bytes


# ---- weight pages: move mapped weights into huge pages once a model is loaded
#
# Mapping a file takes no time, reading it takes seconds; but decodes of a few rows are faster from huge pages
# (tests/measures/pages.py). A thread of the least priority copies the weights, one huge page after the other, and
# puts each copy in the place of the mapped page; beside decodes that takes 2 % of the time. The addresses stay, and
# llama.cpp does not notice. Linux only.
MAPPINGS = "/proc/self/maps"

Range = tuple[int, int]  # addresses: first, end


@contextlib.contextmanager
def moving_weights(ranges: Sequence[Range]) -> Iterator[None]:
    """Move the weights in these ranges during the block; weights not moved by its end stay mapped.

    No other thread may unmap them meanwhile.
    """
    stop, work = C.c_int32(0), BackgroundWork("weights")

    def move() -> None:
        lower_thread_priority()
        move_weights(ranges, stop)

    if ranges:
        work.begin(move)
    try:
        yield
    finally:
        stop.value = 1
        work.wait(None)


def move_weights(ranges: Sequence[Range], stop: C.c_int32) -> None:
    """Move the weights in these ranges, until `stop` is set or the system refuses."""
    move = get_function(load_native(C.CDLL), "weights_move", [C.c_void_p, C.c_void_p, C.c_void_p], C.c_int32)
    for first, end in ranges:
        if move(first, end, C.addressof(stop)):
            return


def exclude_others(found: Sequence[Range], others: Sequence[Range]) -> list[Range]:
    """Return the ranges outside of all `others`."""
    return [(first, end) for first, end in found if all(end <= begin or first >= stop for begin, stop in others)]


def find_mappings(file: Path) -> list[Range]:
    """Return where this process has mapped a file; empty if the system has no list of mappings."""
    path = os.path.realpath(file)
    try:
        lines = Path(MAPPINGS).read_text(errors="surrogateescape").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:  # 7f10-7f20 r--s 00000000 08:01 131090   /path
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5] == path:
            first, end = fields[0].split("-")
            found.append((int(first, 16), int(end, 16)))
    return found


# ---- the weights of a head's upper layers: a second model in the file of the first (gguf/upper_layers.py)
#
# llama.cpp loads it from an open C file that stands where the model begins.
class UpperWeights:
    """The owner of the second llama_model; `handle` is None if llama.cpp cannot load it. Contexts are closed first."""

    def __init__(self, library: LlamaLibrary, path: Path, params: object, layers: UpperLayers) -> None:
        self.library, self.layers = library, layers
        self.handle = self._load(path, params)

    def _load(self, path: Path, params: object) -> object:
        libc = C.CDLL(None)
        open_file = get_function(libc, "fopen", [C.c_char_p, C.c_char_p], C.c_void_p)
        seek = get_function(libc, "fseek", [C.c_void_p, C.c_long, C.c_int], C.c_int)
        close = get_function(libc, "fclose", [C.c_void_p], C.c_int)
        file = open_file(os.fsencode(path), b"rb")
        if not file:
            return None
        try:
            is_there = seek(file, self.layers.begin, os.SEEK_SET) == 0
            return self.library.api.llama_model_load_from_file_ptr(file, params) if is_there else None
        finally:
            close(file)

    def close(self) -> None:
        if self.handle:
            self.library.api.llama_model_free(self.handle)
            self.handle = None
