"""LoRA adapters that were loaded for a model, and the mix of them that a context applies.

llama.cpp reserves graph nodes for them when a context is created, so they are loaded before. They live as long as the
model. A change of the mix makes llama.cpp plan its graphs again at the next decode.
"""

from __future__ import annotations

import ctypes as C
import os
from pathlib import Path

from eaglelocal.backend.llama_library import LlamaLibrary
from eaglelocal.core.adapters import NO_ADAPTERS, AdapterMix
from eaglelocal.errors import EngineError, ModelFileError


def load_adapter(library: LlamaLibrary, model: object, path: Path) -> object:
    """Return llama.cpp's handle of an adapter. Raises ModelFileError with its message."""
    library.log.begin()
    handle = library.api.llama_adapter_lora_init(model, os.fsencode(path))
    if not handle:
        raise ModelFileError(f"llama.cpp cannot load {path}: {library.log.reason()}")
    return handle


class ContextAdapters:
    """The adapters that a context applies. handles: those of its model, by id."""

    def __init__(self, library: LlamaLibrary, context: object, handles: list[object]) -> None:
        self._library, self._context, self._handles = library, context, handles
        self._mix = NO_ADAPTERS

    def use(self, mix: AdapterMix) -> None:
        """Apply exactly these adapters from now on. Raises EngineError where llama.cpp refuses them."""
        if mix == self._mix:
            return
        api, count = self._library.api, len(mix)
        handles = (api.llama_adapter_lora_p_ctypes * count)(*(self._handles[number] for number, _ in mix))
        scales = (C.c_float * count)(*(scale for _, scale in mix))
        status = api.llama_set_adapters_lora(self._context, handles, count, scales)
        if status:
            raise EngineError(f"llama_set_adapters_lora gave {status}: {self._library.log.reason()}")
        self._mix = mix
