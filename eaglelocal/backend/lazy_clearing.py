"""Clear the caches of a new context without touching their memory, which takes most of the time of opening it.

llama.cpp writes zeros to all cells. Fresh memory is zero already, and the system only provides it when it is touched:
seconds for a large cache in a virtual machine. So only pages that were touched before are cleared. A thread populates
MAX_POPULATED_BYTES of the others in the background, which the first conversations use; the system provides the rest on
use.

Knows the tables of the pinned build, as dry_run.py does, and Linux's list of a process's pages.
"""

from __future__ import annotations

import contextlib
import ctypes as C
import os
import sys
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from eaglelocal.backend.dry_run import ALLOCATE, BufferFunctions, BufferType
from eaglelocal.backend.llama_library import LlamaLibrary, bind
from eaglelocal.processes.this_process import BackgroundWork, lower_thread_priority

CLEAR = C.CFUNCTYPE(None, C.c_void_p, C.c_uint8)  # buffer, value
PAGES = "/proc/self/pagemap"  # a number of 64 bits for each page; its highest two: in memory, swapped out
MADV_POPULATE_WRITE = 23
PIECE_BYTES = 2**19  # while one is populated, nothing else in this process can be mapped
# of all caches together: providing gigabytes would slow the first answers, and most conversations never use them
MAX_POPULATED_BYTES = 512 * 2**20

Range = tuple[int, int]  # addresses: first, end


@contextlib.contextmanager
def lazy_clearing(library: LlamaLibrary, num_tensors: int) -> Iterator[BackgroundWork]:
    """Clear buffers in RAM lazily if they are allocated within the block, as long as the block runs.

    Yields a function that populates their memory after the block, starting with the beginnings of a cache's
    `num_tensors` tensors. No other thread may load or decode during the block.
    """
    population = BackgroundWork("caches")
    if sys.platform != "linux":
        yield population
        return
    native = C.PyDLL(library.path)
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
    population.begin(lambda: populate_last(list_pieces(fresh, num_tensors, MAX_POPULATED_BYTES)))


def clear_memory(first: int, num_bytes: int, value: int) -> list[Range]:
    """Set memory to a value; return the parts that stay untouched because they are zero already."""
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
    """Return the memory that this process has ever written to, as parts in order; None if the system does not say."""
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


def list_pieces(ranges: Sequence[Range], num_parts: int, max_bytes: int) -> Iterator[Range]:
    """Yield the first pieces of all parts of all ranges, then the second ones, up to so many bytes in all.

    num_parts  equal parts of a range: the tensors of a cache. A conversation begins at the beginning of each of them

    >>> list(list_pieces([(0, 4 * PIECE_BYTES)], 2, 3 * PIECE_BYTES))  # of the parts 0 to 2 and 2 to 4
    [(0, 524288), (1048576, 1572864), (524288, 1048576)]
    """
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    parts = [part for each in ranges for part in _divide(each, num_parts, page_bytes)]
    longest = max((end - first for first, end in parts), default=0)
    for offset in range(0, longest, PIECE_BYTES):
        for first, end in parts:
            size = min(PIECE_BYTES, end - first - offset, max_bytes)
            if size > 0:
                yield first + offset, first + offset + size
                max_bytes -= size


def _divide(whole: Range, num_parts: int, page_bytes: int) -> Iterator[Range]:
    """Yield equal parts of a range, which begin at pages."""
    first, end = whole
    size = max(-(-(end - first) // max(num_parts, 1) // page_bytes) * page_bytes, page_bytes)
    for at in range(first // page_bytes * page_bytes, end, size):
        yield max(at, first), min(at + size, end)


def populate_last(ranges: Iterable[Range]) -> None:
    """Populate memory on a thread of the lowest priority: the first answers may not need it."""
    lower_thread_priority()
    populate(ranges)


def populate(ranges: Iterable[Range]) -> None:
    """Make the system provide memory before it is used; its content stays. Linux before 5.14 refuses that."""
    advise = C.CDLL(None).madvise
    advise.argtypes = [C.c_void_p, C.c_size_t, C.c_int]
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    for first, end in ranges:
        at = -(-first // page_bytes) * page_bytes
        size = (end - at) // page_bytes * page_bytes
        if size > 0 and advise(at, size, MADV_POPULATE_WRITE):
            return
