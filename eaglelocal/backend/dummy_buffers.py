"""Dummy buffers, so that llama.cpp allocates nothing while it only plans.

With `no_alloc` it plans models, caches and graphs, but still allocates recurrent states, and writes zeros to all of
them (llama-memory-recurrent.cpp). Planning fewer would give other results: compute buffers grow with their number, in
steps. So during planning each buffer type gets another allocator in its function table (ggml-backend-impl.h), which
returns buffers of the right size without memory. llama.cpp's own dummies have no size.

Knows the tables of the pinned build. Nothing may be computed, copied or read in such a buffer.
"""

from __future__ import annotations

import contextlib
import ctypes as C
from collections.abc import Iterator

from eaglelocal.backend.llama_library import LlamaLibrary, bind

ALLOCATE = C.CFUNCTYPE(C.c_void_p, C.c_void_p, C.c_size_t)  # buffer type, bytes -> buffer
BUFFER_FUNCTIONS = (
    *("free_buffer", "get_base", "init_tensor", "memset_tensor", "set_tensor", "get_tensor"),
    *("set_tensor_2d", "get_tensor_2d", "cpy_tensor", "clear", "reset"),
)


class BufferType(C.Structure):
    """The head of the struct ggml_backend_buffer_type."""

    _fields_ = (("get_name", C.c_void_p), ("alloc_buffer", C.c_void_p))


class BufferFunctions(C.Structure):
    """The struct ggml_backend_buffer_i."""

    _fields_ = [(name, C.c_void_p) for name in BUFFER_FUNCTIONS]


@contextlib.contextmanager
def dummy_allocations(library: LlamaLibrary) -> Iterator[None]:
    """Let all allocations within the block, on any device, return dummy buffers.

    No other thread may load or decode during the block. Objects made within the block may be freed after it.
    """
    native = C.PyDLL(library.api._lib._name)
    make = bind(native, "ggml_backend_buffer_init", [C.c_void_p, BufferFunctions, C.c_void_p, C.c_size_t], C.c_void_p)
    functions = dummy_functions(native)
    allocate = ALLOCATE(lambda kind, num_bytes: make(kind, functions, None, num_bytes))
    devices = map(library.device_at, range(library.num_devices()))
    kinds = set(map(library.device_buffer_type, devices))  # BLAS shares the CPU's
    tables = [BufferType.from_address(kind) for kind in kinds]
    allocators = [table.alloc_buffer for table in tables]
    try:
        for table in tables:
            table.alloc_buffer = C.cast(allocate, C.c_void_p).value
        yield
    finally:
        for table, allocator in zip(tables, allocators, strict=True):
            table.alloc_buffer = allocator


def dummy_functions(native: C.CDLL) -> BufferFunctions:
    """Return the functions of a dummy buffer: functions of llama.cpp itself, because they must outlive any buffer.

    Only distances from the base address are computed, so any but NULL will do: it is that of the buffer's type.
    Clearing does nothing, as a reset does if there is nothing to reset.
    """
    base = bind(native, "ggml_backend_buffer_get_type", [C.c_void_p], C.c_void_p)
    nothing = bind(native, "ggml_backend_buffer_reset", [C.c_void_p], None)
    return BufferFunctions(get_base=C.cast(base, C.c_void_p).value, clear=C.cast(nothing, C.c_void_p).value)
