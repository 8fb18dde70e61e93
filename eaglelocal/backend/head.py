"""An EAGLE head's context: encode target features to states, decode (token, state) pairs.

Runs llama.cpp's `eagle3` graph; what EAGLE-3.1 adds to it is done by drafters/eagle3.py on the host.
Knows the traps of that graph: encoder rows need positions that follow the cache, at most n_ubatch rows.
"""

from __future__ import annotations

import ctypes as C

import numpy as np

from eaglelocal.backend.context import ContextParams, LlamaContext, best_of, check_decode, create_context
from eaglelocal.backend.library import Embedding, NativeClock
from eaglelocal.backend.memory import Cells
from eaglelocal.backend.model import Model
from eaglelocal.backend.views import floats_at
from eaglelocal.core.batch import Floats, PairBatch, Proposals
from eaglelocal.errors import EngineError


class LlamaHeadContext:
    """Implements core.ports.HeadContext. Its target's context lends embeddings and lm_head if it has none."""

    def __init__(self, model: Model, params: ContextParams, *, target: LlamaContext) -> None:
        self._library, self._api = model.library, model.library.api
        self.clock = NativeClock()
        self.handle = create_context(model, params, other=target.handle)
        self._library.set_nextn(self.handle, True, True)  # masked: unmasked, a one-row batch gives NULL
        self._cells = Cells(self._library, self.handle)
        self._features = self._api.llama_batch_ext_init(self.handle)
        self._pairs = self._api.llama_batch_ext_init(self.handle)
        self._position = C.c_int32()
        self._position_at = C.byref(self._position)
        self.n_batch, self.width, self._n_vocab = params.n_batch, model.n_embd, target.n_vocab

    def encode(self, features: Floats) -> Floats:
        states = [self._encode(features[i : i + self.n_batch]) for i in range(0, len(features), self.n_batch)]
        return states[0] if len(states) == 1 else np.concatenate(states)

    def _encode(self, features: Floats) -> Floats:
        api, batch = self._api, self._features
        features = np.ascontiguousarray(features, np.float32)
        first = self._cells.last_position(0) + 1  # placeholders, but they must follow the cache
        with self.clock:
            api.llama_batch_ext_clear(batch)
            for i in range(len(features)):
                at = self._library.add_embedding(batch, 0, row_of(features, i))
                self._set_position(batch, at, first + i)
                api.llama_batch_ext_set_output_embd(batch, at, True)
            code = api.llama_process(self.handle, api.LLAMA_PROCESS_TYPE_ENCODE, batch)
            api.llama_synchronize(self.handle)
        check_decode(code, len(features), self._library)
        return self._copy(self._library.get_nextn(self.handle), len(features))

    def decode(self, batch: PairBatch, branches: int, *, confident: bool) -> Proposals:
        self._cells.check_open()
        api, native = self._api, self._pairs
        asks = bool(
            batch.outputs
        )  # all rows or none: the graph does not select rows, and llama.cpp would give the first
        with self.clock:
            api.llama_batch_ext_clear(native)
            for i, token in enumerate(batch.tokens):
                at = api.llama_batch_ext_add_token(native, batch.sequences[i], token)
                self._library.set_embedding(native, at, row_of(batch.states, i))
                self._set_position(native, at, batch.positions[i])
                api.llama_batch_ext_set_output_logits(native, at, asks)
            code = api.llama_process(self.handle, api.LLAMA_PROCESS_TYPE_DECODE, native)
            api.llama_synchronize(self.handle)
        check_decode(code, len(batch.tokens), self._library)
        return self._proposals(batch.outputs, branches, confident=confident)

    def _proposals(self, rows: list[int], branches: int, *, confident: bool) -> Proposals:
        proposals = best_of([self._logits(row) for row in rows], branches, confident=confident)
        states = [self._copy(self._library.get_nextn_row(self.handle, row), 1) for row in rows]
        joined = np.concatenate(states) if states else np.empty((0, self.width), np.float32)
        return Proposals(proposals.tokens, proposals.confidences, joined)

    def _logits(self, row: int) -> Floats:
        address = self._library.get_logits_row(self.handle, row)
        if not address:
            raise EngineError(f"row {row} of the last draft step has no logits")
        return floats_at(address, 1, self._n_vocab).reshape(-1)

    def _copy(self, address: int | None, num_rows: int) -> Floats:
        if not address:
            raise EngineError("the draft head gave no states")
        return floats_at(address, num_rows, self.width).copy()

    def _set_position(self, batch: object, row: int, position: int) -> None:
        self._position.value = position
        self._api.llama_batch_ext_set_pos(batch, row, self._position_at)

    def remove(self, sequence: int, first_position: int) -> None:
        self._cells.remove(sequence, first_position)

    def last_position(self, sequence: int) -> int:
        return self._cells.last_position(sequence)

    @property
    def native_s(self) -> float:
        return self.clock.seconds

    def close(self) -> None:
        if self.handle:
            self._api.llama_batch_ext_free(self._features)
            self._api.llama_batch_ext_free(self._pairs)
            self._api.llama_free(self.handle)
            self.handle = None
            self._cells.close()


def row_of(rows: Floats, index: int) -> Embedding:
    """One row of a C-contiguous array; llama.cpp copies it at once."""
    return Embedding(rows.ctypes.data + index * rows.strides[0], 1, rows.shape[-1])
