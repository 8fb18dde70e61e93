"""The layouts in which llama.cpp repacks quantized weights for this CPU, and a way to exclude AMX's.

Built by GCC before 12.4 or 13.3 (its bug 114098), llama.cpp's kernels for Intel's AMX crash: half their tile
configuration is unset. Switching repacking off would lose the layouts for AVX2 too, without which four-bit weights
decode much more slowly. But llama.cpp asks the Linux kernel for AMX only once, when layouts are first looked up, and
the kernel refuses AMX to a process whose signal stack is too small for its registers. So such a stack is set just then.
"""

from __future__ import annotations

import contextlib
import ctypes as C
import os
import platform
import sys
from collections.abc import Iterator
from itertools import count, takewhile

from eaglelocal.backend.native_step import get_function

CPU = 0  # ggml_backend_dev_type
STACK_BYTES = 4096  # bytes; AMX needs 11 KiB on the signal stack
AMX = "AMX"
GET_LAYOUTS = C.CFUNCTYPE(C.POINTER(C.c_void_p), C.c_void_p)


class SignalStack(C.Structure):
    """The struct stack_t of Linux on x86-64."""

    _fields_ = [("address", C.c_void_p), ("flags", C.c_int), ("size", C.c_size_t)]


def find_layouts(native: C.CDLL) -> tuple[str, ...]:
    """Return the names of the layouts that llama.cpp uses in this process, with AMX refused. The first call decides."""
    with contextlib.ExitStack() as stack:
        if sys.platform == "linux" and platform.machine() == "x86_64":
            stack.enter_context(small_signal_stack())
            stack.enter_context(silence_stderr())
        return layout_names(native)


def layout_names(native: C.CDLL) -> tuple[str, ...]:
    """Return the names of the CPU backend's layouts; empty if it has none."""
    at, text = C.c_void_p, C.c_char_p
    device = get_function(native, "ggml_backend_dev_by_type", [C.c_int], at)(CPU)
    if not device:
        return ()
    backend = get_function(native, "ggml_backend_dev_backend_reg", [at], at)(device)
    get_address = get_function(native, "ggml_backend_reg_get_proc_address", [at, text], at)
    address = get_address(backend, b"ggml_backend_dev_get_extra_bufts")
    if not address:
        return ()
    get_name = get_function(native, "ggml_backend_buft_name", [at], text)
    layouts = GET_LAYOUTS(address)(device)  # ends with NULL
    return tuple(get_name(layout).decode() for layout in takewhile(bool, map(layouts.__getitem__, count())))


@contextlib.contextmanager
def small_signal_stack() -> Iterator[None]:
    """Give this thread a small signal stack within the block; do nothing if the system refuses one this small."""
    set_stack = C.CDLL(None).sigaltstack
    memory = C.create_string_buffer(STACK_BYTES)
    small, previous = SignalStack(C.addressof(memory), 0, STACK_BYTES), SignalStack()
    if set_stack(C.byref(small), C.byref(previous)):
        yield
        return
    try:
        yield
    finally:
        set_stack(C.byref(previous), None)


@contextlib.contextmanager
def silence_stderr() -> Iterator[None]:
    """Redirect stderr to nothing within the block.

    llama.cpp prints that AMX is missing; that must not be the last line on stderr before a crash.
    """
    try:
        saved = os.dup(2)
    except OSError:  # it is closed already
        yield
        return
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nothing)
