"""The layouts in which llama.cpp may keep quantized weights for this processor, and why none of them is AMX's.

Built by GCC before 12.4 or 13.3 (its bug 114098), llama.cpp's kernels for Intel's AMX crash: half their tile
configuration is unset. There is no switch for it, and with AMX go the layouts for AVX, which make quantized weights
15 to 30 % faster. But llama.cpp asks the kernel for AMX only once, when layouts are first looked for, and the kernel
refuses it to processes with a signal stack too small for its registers. So such a stack is there just then.
"""

from __future__ import annotations

import contextlib
import ctypes as C
import os
import platform
import sys
from collections.abc import Iterator

CPU = 0  # ggml_backend_dev_type
SMALL = 4096  # bytes; AMX needs 11 KiB on a signal's stack
AMX = "AMX"
LAYOUTS_OF = C.CFUNCTYPE(C.POINTER(C.c_void_p), C.c_void_p)


class SignalStack(C.Structure):
    """stack_t of Linux on x86-64."""

    _fields_ = [("address", C.c_void_p), ("flags", C.c_int), ("size", C.c_size_t)]


def find_layouts(native: C.CDLL) -> tuple[str, ...]:
    """Names of what llama.cpp will choose from in this process, found while AMX is refused. The first call decides."""
    with contextlib.ExitStack() as around:
        if sys.platform == "linux" and platform.machine() == "x86_64":
            around.enter_context(small_signal_stack())
            around.enter_context(muted())
        return layout_names(native)


def layout_names(native: C.CDLL) -> tuple[str, ...]:
    """As llama.cpp's CPU backend tells them; none, where it has no such thing."""
    device = function(native, "ggml_backend_dev_by_type", C.c_int)(CPU)
    if not device:
        return ()
    backend = function(native, "ggml_backend_dev_backend_reg", C.c_void_p)(device)
    address_of = function(native, "ggml_backend_reg_get_proc_address", C.c_void_p, C.c_char_p)
    address = address_of(backend, b"ggml_backend_dev_get_extra_bufts")
    if not address:
        return ()
    name_of = function(native, "ggml_backend_buft_name", C.c_void_p, result=C.c_char_p)
    return tuple(name_of(layout).decode() for layout in until_null(LAYOUTS_OF(address)(device)))


def until_null(addresses: C._Pointer[C.c_void_p]) -> Iterator[int]:
    for i in range(sys.maxsize):
        address = addresses[i]
        if not address:
            return
        yield address


def function(native: C.CDLL, symbol: str, *argtypes: type, result: type = C.c_void_p) -> C._NamedFuncPointer:
    found = native[symbol]
    found.argtypes, found.restype = list(argtypes), result
    return found


@contextlib.contextmanager
def small_signal_stack() -> Iterator[None]:
    """Of this thread; nothing happens where the system will have none so small."""
    set_stack = C.CDLL(None).sigaltstack
    memory = C.create_string_buffer(SMALL)
    small, before = SignalStack(C.addressof(memory), 0, SMALL), SignalStack()
    if set_stack(C.byref(small), C.byref(before)):
        yield
        return
    try:
        yield
    finally:
        set_stack(C.byref(before), None)


@contextlib.contextmanager
def muted() -> Iterator[None]:
    """llama.cpp prints that it misses AMX; that must not be the last thing an engine said before it died."""
    sys.stderr.flush()
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)
