"""The shared part of all heads' contexts: one cache for all sequences, and two batches that native code fills."""

from __future__ import annotations

import ctypes as C

from eaglelocal.backend.context import LlamaContext
from eaglelocal.backend.context_params import ContextParams, create_context
from eaglelocal.backend.kv_cells import JointCells, KvCells
from eaglelocal.backend.model import LlamaModel
from eaglelocal.backend.native_step import HeadStruct, fill_struct
from eaglelocal.backend.weight_loading import UpperWeights


class UpperContext:
    """The context of a head's upper layers. `fields` are those of HeadStruct that native code runs it with."""

    def __init__(self, weights: UpperWeights, params: ContextParams) -> None:
        self._library, layers, n = weights.library, weights.layers, params.n_batch
        self.handle = create_context(weights, params)
        self.cells = KvCells(self._library, self.handle)
        tokens = layers.draft_tokens
        self.fields = {
            "upper": self.handle,
            "upper_memory": self.cells.memory,
            "num_ranked_tokens": layers.num_rows,
            "draft_tokens": (C.c_int32 * len(tokens))(*tokens) if tokens else None,
            "counts": (C.c_int32 * n)(*[1] * n),
            "row_sequences": (C.c_void_p * n)(),
            "row_outputs": (C.c_int8 * n)(),
        }

    def close(self) -> None:
        self._library.api.llama_free(self.handle)


class HeadCells:
    """The owner of a head's llama_context. A head without embeddings or lm_head borrows them from its target's context.

    The struct has the fields that every head needs; subclasses set the others.
    """

    def __init__(self, model: LlamaModel, params: ContextParams, target: LlamaContext) -> None:
        self._library, self._native, self._target = model.library, model.library.native_step, target
        self._api = model.library.api
        self.n_batch = params.n_batch
        self.handle = create_context(model, params, other=target.handle)
        self._upper = None if model.upper is None else UpperContext(model.upper, params)
        own = KvCells(self._library, self.handle)
        cells = self._cells = JointCells(own, self._upper.cells) if self._upper else own
        self.remove, self.share, self.last_position = cells.remove, cells.share, cells.last_position
        self.swapped_bytes, self.swap_out, self.swap_in = cells.swapped_bytes, cells.swap_out, cells.swap_in
        self._feature_batch, self._pair_batch = (self._api.llama_batch_ext_init(self.handle) for _ in range(2))
        self._struct = fill_struct(
            HeadStruct(),
            api=self._native.api,
            target=target.address,
            context=self.handle,
            memory=self._cells.memory,
            features=self._feature_batch,
            pairs=self._pair_batch,
            n_batch=params.n_batch,
            row=(C.c_float * (target.num_taps * target.tap_width))(),
            **(self._upper.fields if self._upper else {}),
        )
        self._address = C.addressof(self._struct)

    @property
    def native_s(self) -> float:
        return self._cells.native_s + float(self._struct.native_s)

    def close(self) -> None:
        if self.handle:
            self._api.llama_batch_ext_free(self._feature_batch)
            self._api.llama_batch_ext_free(self._pair_batch)
            self._api.llama_free(self.handle)
            if self._upper:
                self._upper.close()
            self.handle = self._struct.context = None
            self._cells.close()
