"""A model file in memory: its sizes and its vocabulary. Owns the llama_model; contexts must close first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from eaglelocal.backend.library import Library
from eaglelocal.backend.vocabulary import LlamaVocabulary
from eaglelocal.errors import ModelFileError


class Model:
    """Weights of a target, a draft model or an EAGLE head. Raises ModelFileError with llama.cpp's own words.

    repack  let llama.cpp keep quantized weights in a layout of its own for this processor
    """

    def __init__(
        self,
        library: Library,
        path: Path,
        *,
        gpu_layers: int | None = None,
        repack: bool = True,
        on_progress: Callable[[float], None] | None = None,
    ) -> None:
        self.library, self.path = library, path
        api = library.api
        params = api.llama_model_default_params()
        if gpu_layers is not None:
            params.n_gpu_layers = gpu_layers
        params.use_extra_bufts = repack

        def report(fraction: float, user_data: object) -> bool:
            if on_progress is not None:
                on_progress(fraction)
            return True

        callback = api.llama_progress_callback(report)
        params.progress_callback = callback
        library.log.begin()
        self.handle = api.llama_model_load_from_file(str(path).encode(), params)
        if not self.handle:
            raise ModelFileError(f"llama.cpp cannot load {path}: {library.log.reason()}", hint="eaglelocal probe")
        self.n_embd: int = api.llama_model_n_embd(self.handle)
        self.n_layer: int = api.llama_model_n_layer(self.handle)
        self.size_bytes: int = api.llama_model_size(self.handle)
        self.is_hybrid = bool(api.llama_model_is_hybrid(self.handle) or api.llama_model_is_recurrent(self.handle))
        self.vocabulary = LlamaVocabulary(library, api.llama_model_get_vocab(self.handle), self._chat_template())

    def _chat_template(self) -> str | None:
        raw = self.library.api.llama_model_chat_template(self.handle, None)
        return raw.decode("utf-8", "replace") if raw else None

    def target_layers(self) -> tuple[int, ...]:
        """Layer inputs that an EAGLE head reads from its target; empty for other models."""
        num = int(self.library.num_target_layer_ids(self.handle))
        ids = self.library.target_layer_ids(self.handle)
        return tuple(ids[i] for i in range(num))

    def close(self) -> None:
        if self.handle:
            self.library.api.llama_model_free(self.handle)
            self.handle = None
