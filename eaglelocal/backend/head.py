"""An EAGLE head's context: encode target features to states, decode (token, state) pairs.

Runs llama.cpp's `eagle3` graph; what EAGLE-3.1 adds to it is done by drafters/eagle3.py on the host.
Knows the traps of that graph: encoder rows need positions that follow the cache, at most n_ubatch rows.
"""

from __future__ import annotations

import ctypes as C

import numpy as np

from eaglelocal.backend.choices import best_of
from eaglelocal.backend.context import ContextParams, LlamaContext, check_decode, create_context
from eaglelocal.backend.library import Embedding, NativeClock
from eaglelocal.backend.memory import Cells
from eaglelocal.backend.model import Model
from eaglelocal.backend.views import RowViews, floats_at
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
        self.n_batch, self.width = params.n_batch, model.n_embd
        self._logit_views, self._state_views = RowViews(target.n_vocab), RowViews(self.width)
        self._inputs = np.zeros((params.n_batch, self.width), np.float32)  # llama.cpp copies rows from here at once
        first, stride = self._inputs.ctypes.data, self._inputs.strides[0]
        self._input_rows = [Embedding(first + i * stride, 1, self.width) for i in range(params.n_batch)]

    def encode(self, features: Floats) -> Floats:
        rows = features.reshape(len(features), -1)
        states = [self._encode(rows[i : i + self.n_batch]) for i in range(0, len(rows), self.n_batch)]
        return states[0] if len(states) == 1 else np.concatenate(states)

    def _encode(self, features: Floats) -> Floats:
        library, batch = self._library, self._features
        first = self._cells.last_position(0) + 1  # llama.cpp puts encoder rows into sequence 0: they follow its cache
        row_bytes, width = features.strides[0], features.shape[1]
        address = features.ctypes.data
        with self.clock:
            library.clear_rows(batch)
            for i in range(len(features)):
                library.add_embedding(batch, 0, Embedding(address + i * row_bytes, 1, width))
                self._set_position(batch, i, first + i)
                library.set_output(batch, i, True)
            self._process(self._api.LLAMA_PROCESS_TYPE_ENCODE, batch, len(features))
        return self._states_at(library.get_nextn(self.handle), len(features))

    def decode(self, batch: PairBatch, branches: int, *, confident: bool) -> Proposals:
        self._cells.check_open()
        library, native, inputs, addresses = self._library, self._pairs, self._inputs, self._input_rows
        for i, state in enumerate(batch.states):
            inputs[i] = state
        # All rows or none: the graph does not select rows, and llama.cpp would give the first.
        asks = bool(batch.outputs)
        with self.clock:
            library.clear_rows(native)
            for i, token in enumerate(batch.tokens):
                library.add_token(native, batch.sequences[i], token)
                library.set_embedding(native, i, addresses[i])
                self._set_position(native, i, batch.positions[i])
                library.set_output(native, i, asks)
            self._process(self._api.LLAMA_PROCESS_TYPE_DECODE, native, len(batch.tokens))
        return self._proposals(batch.outputs, branches, confident=confident)

    def _process(self, kind: int, batch: object, num_rows: int) -> None:
        code = self._api.llama_process(self.handle, kind, batch)
        self._api.llama_synchronize(self.handle)
        check_decode(code, num_rows, self._library)

    def _proposals(self, rows: list[int], branches: int, *, confident: bool) -> Proposals:
        proposals = best_of(map(self._logits, rows), branches, confident=confident)
        proposals.states.extend(self._state(row) for row in rows)
        return proposals

    def _logits(self, row: int) -> Floats:
        address = self._library.get_logits_row(self.handle, row)
        if not address:
            raise EngineError(f"row {row} of the last draft step has no logits")
        return self._logit_views.at(address)

    def _state(self, row: int) -> Floats:
        address = self._library.get_nextn_row(self.handle, row)
        if not address:
            raise EngineError(f"row {row} of the last draft step has no state")
        return self._state_views.at(address).copy()

    def _states_at(self, address: int | None, num_rows: int) -> Floats:
        if not address:
            raise EngineError("the draft head gave no states")
        return floats_at(address, num_rows, self.width).copy()

    def _set_position(self, batch: object, row: int, position: int) -> None:
        self._position.value = position
        self._library.set_position(batch, row, self._position_at)

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
