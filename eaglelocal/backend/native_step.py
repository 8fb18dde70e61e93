"""Load the native code (native/): its structs, its functions, and the llama.cpp addresses that it calls.

Mirrors native_step.h field by field and does not know models. The memory of the structs lies in ctypes arrays, which
the struct that holds their addresses keeps alive.
"""

from __future__ import annotations

import ctypes as C
import sys
from pathlib import Path
from typing import TypeVar

from eaglelocal.errors import LibraryError

FILE = Path(__file__).parent / "native" / ("libnative_step.dylib" if sys.platform == "darwin" else "libnative_step.so")
BLOCK = 256  # this and the following as in native_step.h
UNKNOWN, ALREADY_READ, NONE_FITS = -1, -2, -3  # instead of a token
CANNOT_REMOVE = 1004

# what the native code calls: the fields of struct api, in order
SYMBOLS = {
    "decode": "llama_decode",
    "process": "llama_process",
    "synchronize": "llama_synchronize",
    "logits_row": "llama_get_logits_ith",
    "layer_input": "_Z30llama_get_embeddings_layer_inpP13llama_contextj",
    "nextn": "_Z26llama_get_embeddings_nextnP13llama_context",
    "nextn_row": "_Z30llama_get_embeddings_nextn_ithP13llama_contexti",
    "normed": "llama_get_embeddings",
    "set_normed": "llama_set_embeddings",
    "clear": "llama_batch_ext_clear",
    "add_token": "llama_batch_ext_add_token",
    "add_embedding": "llama_batch_ext_add_embd",
    "set_embedding": "llama_batch_ext_set_embd_token",
    "set_position": "llama_batch_ext_set_pos",
    "set_output": "llama_batch_ext_set_output_logits",
    "remove_cells": "llama_memory_seq_rm",
    "last_position": "llama_memory_seq_pos_max",
    "apply": "llama_sampler_apply",
    "accept": "llama_sampler_accept",
    "set_nextn_layer": "_Z28llama_set_nextn_layer_offsetP13llama_contexti",
}


class Api(C.Structure):
    _fields_ = [(name, C.c_void_p) for name in SYMBOLS]


class TargetStruct(C.Structure):
    _fields_ = [
        ("api", C.c_void_p),
        ("context", C.c_void_p),
        ("n_vocab", C.c_int32),
        ("tap_width", C.c_int32),
        ("n_taps", C.c_int32),
        ("nextn_tap", C.c_int32),
        ("normed_tap", C.c_int32),
        ("has_normed", C.c_int32),
        ("num_end_tokens", C.c_int32),
        ("end_tokens", C.c_void_p),
        ("taps", C.c_void_p),
        ("tapped", C.c_void_p),
        ("sequences", C.c_void_p),
        ("outputs", C.c_void_p),
        ("row_sequences", C.c_void_p),
        ("best_tokens", C.c_void_p),
        ("is_greedy", C.c_void_p),
        ("num_rows", C.c_int32),
        ("block_maxima", C.c_void_p),
        ("memory", C.c_void_p),
        ("head", C.c_void_p),
        ("submitted_at", C.c_double),
        ("native_s", C.c_double),
    ]


INSTALL = "install eaglelocal again with a C compiler: `pip install .`"


class HeadStruct(C.Structure):
    _fields_ = [
        ("api", C.c_void_p),
        ("target", C.c_void_p),
        ("context", C.c_void_p),
        ("memory", C.c_void_p),
        ("features", C.c_void_p),
        ("pairs", C.c_void_p),
        ("width", C.c_int32),
        ("n_batch", C.c_int32),
        ("tap_eps", C.c_float),
        ("output_gains", C.c_void_p),
        ("output_eps", C.c_float),
        ("row", C.c_void_p),
        ("row_size", C.c_int32),
        ("encoded", C.c_void_p),
        ("states", C.c_void_p),
        ("num_encoded", C.c_int32),
        ("were_states_read", C.c_int32),
        ("has_encoder", C.c_int32),
        ("reads_cache", C.c_int32),
        ("num_layers", C.c_int32),
        ("selects_outputs", C.c_int32),
        ("num_levels", C.c_int32),
        ("upper", C.c_void_p),
        ("upper_memory", C.c_void_p),
        ("num_ranked_tokens", C.c_int32),
        ("draft_tokens", C.c_void_p),
        ("counts", C.c_void_p),
        ("row_sequences", C.c_void_p),
        ("row_outputs", C.c_void_p),
        ("native_s", C.c_double),
    ]


class DrawStruct(C.Structure):
    _fields_ = [
        ("sampler", C.c_void_p),
        ("rank", C.c_int32),
        ("top_p", C.c_float),
        ("min_p", C.c_float),
        ("candidates", C.c_void_p),
        ("masked_logits", C.c_void_p),
    ]


def make_block_maxima(n_vocab: int) -> C.Array[C.c_float]:
    """Return scratch memory for ranking rows of `n_vocab` logits."""
    return (C.c_float * (n_vocab // BLOCK + 1))()


class NativeStep:
    """The loaded native code. `addresses` are those of SYMBOLS. Raises LibraryError if it cannot be loaded."""

    def __init__(self, addresses: list[int | None]) -> None:
        # calls that may take long release the GIL; those that mostly return at once keep it
        long, short = (load_native(kind) for kind in (C.CDLL, C.PyDLL))
        check_layout(short)
        at, i32, f32 = C.c_void_p, C.c_int32, C.c_float
        self.decode = get_function(long, "native_decode", [at, i32, i32, at], i32)
        self.submit = get_function(long, "native_submit", [at, i32, i32, at], i32)
        self.collect = get_function(long, "native_collect", [at, i32, at], i32)
        self.encode = get_function(long, "native_encode", [at, i32, at, at], i32)
        self.draft = get_function(long, "native_draft", [at, i32, at, at, i32, i32, i32, f32, i32, at, at], i32)
        self.draft_layers = get_function(
            long, "native_draft_layers", [at, i32, at, at, i32, i32, i32, i32, f32, i32, at, at], i32
        )
        self.write_features = get_function(long, "native_write_features", [at, i32, at, at, at], i32)
        self.draft_blocks = get_function(
            long, "native_draft_blocks", [at, i32, at, i32, i32, i32, i32, i32, at, at], i32
        )
        self.draft_heads = get_function(
            long, "native_draft_heads", [at, i32, at, i32, i32, i32, i32, at, i32, at, at], i32
        )
        self.best_token = get_function(short, "native_best_token", [at, i32], i32)
        self.draw = get_function(short, "native_draw", [at, at, i32, i32, at, C.c_char_p, i32], i32)
        self.candidates = get_function(short, "native_candidates", [at, at, i32, i32, at, at], i32)
        self.rank_rows = get_function(short, "native_rank_rows", [at, i32, at, i32, at, at], i32)
        self.copy_tapped = get_function(short, "native_copy_tapped", [at, i32, at, f32, at], i32)
        self.rank = get_function(short, "native_rank", [at, i32, i32, at, at, at], None)
        self.norm = get_function(short, "native_norm", [at, i32, f32, at, at], None)
        self.api = Api(*addresses)


def load_native(kind: type[C.CDLL]) -> C.CDLL:
    try:
        return kind(str(FILE))
    except OSError as error:
        raise LibraryError(f"eaglelocal's native code cannot be loaded: {error}", hint=INSTALL) from error


def check_layout(native: C.CDLL) -> None:
    """Raise LibraryError if the native code was compiled from other sources, as after a pull without a reinstall."""
    try:
        size = get_function(native, "native_size", [C.c_int32], C.c_int32)
        sizes = [size(number) for number in range(4)]
    except AttributeError:
        sizes = []
    if sizes != [C.sizeof(struct) for struct in (Api, TargetStruct, HeadStruct, DrawStruct)]:
        raise LibraryError("eaglelocal's native code was built from another version", hint=INSTALL)


def get_function(native: C.CDLL, symbol: str, argtypes: list[type], restype: type | None) -> C._NamedFuncPointer:
    """Return a function of a library with its types set. Raises AttributeError if there is no such symbol."""
    function = native[symbol]  # a new object each time; an attribute would be shared
    function.argtypes, function.restype = argtypes, restype
    return function


S = TypeVar("S", bound=C.Structure)


def fill_struct(struct: S, **fields: object) -> S:
    """Set the fields of a struct and return it. Raises AttributeError for a field that it does not have.

    An array or struct sets its address, and is kept alive by the struct.
    """
    kept = getattr(struct, "kept", [])
    for name, value in fields.items():
        if not hasattr(type(struct), name):  # ctypes would set an ordinary attribute, which native code never sees
            raise AttributeError(f"{type(struct).__name__} has no field {name}")
        if isinstance(value, (C.Array, C.Structure)):
            kept.append(value)
            value = C.addressof(value)
        setattr(struct, name, value)
    struct.kept = kept  # ctypes structures take other attributes too
    return struct
