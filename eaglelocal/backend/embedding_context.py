"""The context of an embedding model: it turns each text into one pooled vector. Owns the llama_context.

A reranker's vectors are its classifier's outputs per class.

Encoders (such as BERT) and decoders with a pooling rule are called the same way: a batch of whole texts is one pass,
and nothing is kept between batches. Vectors are returned as the model gives them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from eaglelocal.backend.context_params import FLASH_ATTENTION, look_up_kv_types, open_context
from eaglelocal.backend.llama_library import NativeClock, native_error
from eaglelocal.backend.model import LlamaModel, look_up
from eaglelocal.core.batch import Floats
from eaglelocal.core.records import dataclass
from eaglelocal.core.run_options import suggest_smaller_ctx
from eaglelocal.errors import EngineError


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingParams:
    """The sizes of a pass."""

    n_batch: int  # tokens; the longest text must fit, because encoders need all of it
    num_texts: int = 1
    ranks: bool = False
    threads: int = 1
    kv_type: str = "f16"
    flash_attn: str = "auto"


class EmbeddingContext:
    """An embedding model over llama.cpp. Implements engine.embedding.Embedder.

    Raises ResourceError if it cannot be made.
    """

    def __init__(self, model: LlamaModel, params: EmbeddingParams) -> None:
        self._library, self._api = model.library, model.library.api
        self._clock = NativeClock()
        self.n_batch, self.num_texts = params.n_batch, params.num_texts
        width_of = self._api.llama_model_n_cls_out if params.ranks else self._api.llama_model_n_embd_out
        self.n_embd = int(width_of(model.handle))
        self._handle: object | None = open_context(
            model,
            f"for passes of {params.n_batch} tokens",
            suggest_smaller_ctx(params.n_batch),
            n_ctx=params.n_batch,
            n_batch=params.n_batch,
            n_seq_max=params.num_texts,
            n_threads=params.threads,
            **look_up_kv_types(params.kv_type),
            flash_attn_type=look_up(FLASH_ATTENTION, params.flash_attn, "--flash-attn"),
            embeddings=True,
            kv_unified=True,
        )
        self._batch = self._api.llama_batch_init(params.n_batch, 0, 1)

    @property
    def native_s(self) -> float:
        return self._clock.seconds

    def embed(self, texts: Sequence[Sequence[int]]) -> Floats:
        """Return the texts' vectors [texts, n_embd], owned. Raises EngineError if the texts do not fit a pass."""
        num_rows = self._fill(texts)
        with self._clock:
            memory = self._api.llama_get_memory(self._handle)
            if memory:  # encoders have none
                self._api.llama_memory_clear(memory, False)
            code = self._api.llama_decode(self._handle, self._batch)
            if code:
                raise native_error(code, num_rows, self._library, n_ctx=self.n_batch)
            pointers = [self._api.llama_get_embeddings_seq(self._handle, index) for index in range(len(texts))]
            if not all(pointers):
                raise EngineError("llama.cpp returned no embedding")
            return np.stack([np.ctypeslib.as_array(pointer, (self.n_embd,)) for pointer in pointers])

    def close(self) -> None:
        if self._handle:
            self._api.llama_batch_free(self._batch)
            self._api.llama_free(self._handle)
            self._handle = None

    def _fill(self, texts: Sequence[Sequence[int]]) -> int:
        """Fill the batch with one sequence per text, and return the number of rows."""
        num_rows = sum(map(len, texts))
        if not self._handle:
            raise EngineError("the context is closed")
        if not 0 < len(texts) <= self.num_texts or not all(texts) or num_rows > self.n_batch:
            raise EngineError(f"{len(texts)} texts of {num_rows} tokens do not fit a pass of {self.n_batch}")
        batch, row = self._batch, 0
        batch.n_tokens = num_rows
        for sequence, text in enumerate(texts):
            for position, token in enumerate(text):
                batch.token[row], batch.pos[row] = token, position
                batch.n_seq_id[row], batch.seq_id[row][0] = 1, sequence
                batch.logits[row] = True
                row += 1
        return num_rows
