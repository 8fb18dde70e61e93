"""The weights of a head's upper layers: a second model in the file of the first (gguf/upper_layers.py).

llama.cpp loads it from an open C file that stands where the model begins.
"""

from __future__ import annotations

import ctypes as C
import os
from pathlib import Path

from eaglelocal.backend.llama_library import LlamaLibrary
from eaglelocal.backend.native_step import get_function
from eaglelocal.gguf.upper_layers import UpperLayers


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
