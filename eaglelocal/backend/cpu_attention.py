"""Install our own flash attention (native/attention.c) in llama.cpp's CPU backend.

llama.cpp's own is fast for prompts (64 rows and more), but slow for the 2 to 16 rows that verify a draft: it reads the
whole cache once for each row and head. Ours reads it once for all. It also adds in 32-bit floats, and a row's result
does not depend on how many rows are computed with it (docs/architecture/step.md). The same holds for our products with
quantized weights: llama.cpp's kernels round differently from four or eight rows on.
"""

from __future__ import annotations

import ctypes as C
import functools
import os
from collections.abc import Callable

from eaglelocal.backend.native_step import get_function, load_native

CPU = 0  # ggml_backend_dev_type
OPERATIONS = {74: b"FLASH_ATTN_EXT", 95: b"CUSTOM"}  # ggml_op, in the checked build of llama.cpp
ROW_FORMATS = ("Q4_K", "Q5_K", "Q6_K", "Q8_0", "Q4_1")  # types of weights, in the order of their bits
ROW_KERNELS = (  # of llama.cpp: for one row, and how it quantizes one
    "ggml_gemv_q4_K_8x8_q8_K",
    "ggml_vec_dot_q5_K_q8_K",
    "ggml_vec_dot_q6_K_q8_K",
    "ggml_vec_dot_q8_0_q8_0",
    "ggml_vec_dot_q4_1_q8_1",
    "quantize_row_q8_K",
    "quantize_row_q8_0",
    "quantize_row_q8_1",
)
MOST_OPERATIONS = 64  # of ggml, among which products come early
SWITCH = "EAGLELOCAL_ATTENTION"  # "llama.cpp" leaves llama.cpp's own attention in place, for comparisons


@functools.cache
def is_supported() -> bool:
    """Return whether the native code knows this processor's vector instructions (AVX-512, AVX2 or NEON)."""
    if os.environ.get(SWITCH) == "llama.cpp":
        return False
    return bool(get_function(load_native(C.PyDLL), "attention_supported", [], C.c_bool)())


def install_attention(llama: C.CDLL) -> bool:
    """Wrap the CPU device of this process; contexts made from now on use our attention. Return whether it is in place.

    llama: a handle of libllama, through which ggml's symbols are found
    """
    if not is_supported():
        return False
    at, i32 = C.c_void_p, C.c_int32
    device = get_function(llama, "ggml_backend_dev_by_type", [i32], at)(CPU)
    get_name = get_function(llama, "ggml_op_name", [i32], C.c_char_p)
    if not device or any(get_name(number) != name for number, name in OPERATIONS.items()):
        return False
    registry = get_function(llama, "ggml_backend_dev_backend_reg", [at], at)(device)
    install = get_function(load_native(C.PyDLL), "attention_install", [at, at, at, at, i32, i32], C.c_bool)
    graph = [C.cast(llama[symbol], at) for symbol in ("ggml_graph_n_nodes", "ggml_graph_node")]
    return bool(install(device, registry, *graph, *OPERATIONS))


def install_products(llama: C.CDLL, *, num_skipped: int = 0) -> tuple[str, ...]:
    """Multiply rows with the weights as one row is multiplied (native/row_products.c).

    Return the types of weights for which that works: where llama.cpp has a kernel for one row that rounds as ours does.

    num_skipped  how many kernels for wider processors to pass over
    """
    at = C.c_void_p
    get_name = get_function(llama, "ggml_op_name", [C.c_int32], C.c_char_p)
    operation = next((number for number in range(MOST_OPERATIONS) if get_name(number) == b"MUL_MAT"), None)
    try:
        kernels = [C.cast(llama[symbol], at).value for symbol in ROW_KERNELS]
    except AttributeError:  # the build hides them, or is for another processor
        return ()
    if operation is None:
        return ()
    taken = products_installer()((at * len(kernels))(*kernels), operation, num_skipped)
    return tuple(name for bit, name in enumerate(ROW_FORMATS) if taken >> bit & 1)


def products_installer() -> Callable[[C.Array[C.c_void_p] | None, int, int], int]:
    """Return the native function: llama.cpp's kernels, the number of its operation, ... -> a bit for each type."""
    types: list[type] = [C.POINTER(C.c_void_p), C.c_int32, C.c_int32]
    return get_function(load_native(C.PyDLL), "products_install", types, C.c_int32)
