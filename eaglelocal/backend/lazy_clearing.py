"""Clear the caches of a new context without touching their memory, which takes most of the time of opening it.

llama.cpp writes zeros to all cells. Fresh memory is zero already, and the system only provides it when it is touched:
seconds for a large cache in a virtual machine. So only pages that were touched before are cleared. The others are
provided by a thread meanwhile; until it gets there, they are provided as they are used.

Knows the tables of the pinned build, as dummy_buffers.py does, and Linux's list of a process's pages.
"""

from __future__ import annotations

import contextlib
import ctypes as C
import os
import sys
import threading
from collections.abc import Iterable, Iterator

import numpy as np

from eaglelocal.backend.dummy_buffers import ALLOCATE, BufferFunctions, BufferType
from eaglelocal.backend.llama_library import LlamaLibrary, bind

CLEAR = C.CFUNCTYPE(None, C.c_void_p, C.c_uint8)  # buffer, value
PAGES = "/proc/self/pagemap"  # a number of 64 bits for each page; its highest two: in memory, swapped out
MADV_POPULATE_WRITE = 23
PIECE_BYTES = 32 * 2**20

Range = tuple[int, int]  # addresses: first, end


class Population:
    """The thread that has the system provide memory, if there is one."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    def begin(self, ranges: list[Range]) -> None:
        self._thread = threading.Thread(target=populate, args=(ranges,), name="caches", daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float | None) -> bool:
        """Wait so many seconds (None: as long as it takes) for its end; return whether it has ended."""
        if self._thread is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()


@contextlib.contextmanager
def lazy_clearing(library: LlamaLibrary) -> Iterator[Population]:
    """Let buffers in RAM that are allocated within the block be cleared lazily, as long as the block runs.

    Yields what provides their memory after the block. No other thread may load or decode during the block.
    """
    population = Population()
    if sys.platform != "linux":
        yield population
        return
    native = C.PyDLL(library.api._lib._name)
    get_base = bind(native, "ggml_backend_buffer_get_base", [C.c_void_p], C.c_void_p)
    get_size = bind(native, "ggml_backend_buffer_get_size", [C.c_void_p], C.c_size_t)
    table = BufferType.from_address(library.cpu_buffer_type())
    original = table.alloc_buffer
    changed: list[tuple[BufferFunctions, int]] = []  # functions of buffers, and their original one for clearing
    fresh: list[Range] = []

    def clear(buffer: int, value: int) -> None:
        fresh.extend(clear_memory(get_base(buffer), get_size(buffer), value))

    def allocate(kind: int, num_bytes: int) -> int | None:
        buffer: int | None = ALLOCATE(original)(kind, num_bytes)
        if buffer:
            functions = BufferFunctions.from_address(buffer)  # a buffer begins with its functions
            changed.append((functions, functions.clear))
            functions.clear = C.cast(clearing, C.c_void_p).value
        return buffer

    clearing, allocating = CLEAR(clear), ALLOCATE(allocate)
    table.alloc_buffer = C.cast(allocating, C.c_void_p).value
    try:
        yield population
    finally:
        table.alloc_buffer = original
        for functions, function in changed:
            functions.clear = function
    population.begin(fresh)


def clear_memory(first: int, num_bytes: int, value: int) -> list[Range]:
    """Set memory to a value; return the parts that were never touched and stay so, because they are zero."""
    touched = find_touched(first, num_bytes) if value == 0 else None
    if touched is None:
        C.memset(first, value, num_bytes)
        return []
    fresh, at = list[Range](), first
    for start, end in [*touched, (first + num_bytes, first + num_bytes)]:
        if at < start:
            fresh.append((at, start))
        C.memset(start, 0, end - start)
        at = end
    return fresh


def find_touched(first: int, num_bytes: int) -> list[Range] | None:
    """Return the parts of memory that this process has ever written to, in order; None if the system does not say."""
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    first_page, end_page = first // page_bytes, -(-(first + num_bytes) // page_bytes)
    try:
        with open(PAGES, "rb", buffering=0) as pages:
            pages.seek(first_page * 8)
            states = np.frombuffer(pages.read((end_page - first_page) * 8), np.uint64)
    except (OSError, ValueError):
        return None
    if len(states) != end_page - first_page:
        return None
    is_touched = np.concatenate(([False], states >> np.uint64(62) != 0, [False]))
    edges = (first_page + np.flatnonzero(is_touched[1:] != is_touched[:-1])) * page_bytes
    limited = np.clip(edges, first, first + num_bytes).tolist()
    return list(zip(limited[::2], limited[1::2], strict=True))


def populate(ranges: Iterable[Range]) -> None:
    """Have the system provide memory before it is used; its content stays. Linux before 5.14 refuses that."""
    advise = C.CDLL(None).madvise
    advise.argtypes = [C.c_void_p, C.c_size_t, C.c_int]
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    for first, end in ranges:
        at = -(-first // page_bytes) * page_bytes
        while at + page_bytes <= end:
            size = min(PIECE_BYTES, (end - at) // page_bytes * page_bytes)
            if advise(at, size, MADV_POPULATE_WRITE):
                return
            at += size
