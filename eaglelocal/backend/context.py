"""A target (or draft model) context: decode rows, sample from them, copy what is asked for.

Owns the llama_context and its batch memory. Everything handed out is an owned copy, made when it
is asked for; `sample`, `propose` and `features` read llama.cpp's memory before the next decode overwrites it.
"""

from __future__ import annotations

import ctypes as C
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eaglelocal.backend.choices import best_of
from eaglelocal.backend.library import Library, NativeClock
from eaglelocal.backend.memory import Cells
from eaglelocal.backend.model import Model, look_up
from eaglelocal.backend.samplers import ChainSampler, GreedySampler
from eaglelocal.backend.views import RowViews, floats_at
from eaglelocal.core.batch import Batch, Floats, Proposals
from eaglelocal.core.ports import Sampler
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.errors import EngineError, ResourceError

KV_TYPES = {"f16": 1, "bf16": 30, "q8_0": 8, "q4_0": 2, "f32": 0}  # ggml_type
FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}  # llama_flash_attn_type


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextParams:
    """Sizes of a context. `n_ctx` counts positions per sequence."""

    n_ctx: int
    num_sequences: int = 1
    num_branches: int = 0  # sequences behind those, which share their cells; unified only
    unified: bool = True  # one cache for all sequences, else one for each
    n_batch: int = 512
    max_outputs: int | None = None  # output rows of one decode; None: every row may be one
    threads: int = 1
    kv_type: str = "f16"
    flash_attention: str = "auto"

    def __post_init__(self) -> None:
        if self.num_branches and self.num_ids > self.num_outputs:  # llama.cpp would abort
            raise EngineError(f"{self.num_ids} sequences need as many output rows, not {self.num_outputs}")

    @property
    def num_ids(self) -> int:
        """Sequences that rows may belong to."""
        return self.num_sequences + self.num_branches

    @property
    def num_outputs(self) -> int:
        return self.n_batch if self.max_outputs is None else min(self.max_outputs, self.n_batch)


@dataclass(frozen=True, slots=True)
class TappedRows:
    """Implements core.batch.Outputs over the layer inputs of one decode."""

    context: LlamaContext
    number: int  # of the decode
    layers: list[Floats]  # [taps] of [rows, n_embd]: views that the next decode overwrites

    def features(self, rows: list[int]) -> Floats | None:
        if self.number != self.context.num_decodes:
            raise EngineError("features of a decode were asked for after the next one")
        layers = self.layers
        if not layers:
            return None
        copied = np.empty((len(rows), len(layers), layers[0].shape[1]), np.float32)
        for i, layer in enumerate(layers):
            copied[:, i] = layer[rows]
        return copied


class LlamaContext:
    """Implements core.ports.Context over llama.cpp.

    taps            layer inputs to be copied for every row; n_layer is the state behind the last layer
    final_by_nextn  that final state is had as llama.cpp's "nextn" state, not as a layer input
    """

    def __init__(
        self, model: Model, params: ContextParams, *, taps: tuple[int, ...] = (), final_by_nextn: bool = False
    ) -> None:
        self._library, self._model = model.library, model
        self.clock = NativeClock()
        self.handle = create_context(model, params)
        self._cells = Cells(self._library, self.handle)
        self._rows = RowMemory(self._library, params.n_batch, params.num_ids)
        self.n_batch = params.n_batch
        self.n_vocab = model.vocabulary.n_tokens
        self.n_ctx = params.n_ctx
        self.is_unified, self.num_branches = params.unified, params.num_branches
        self._logit_views = RowViews(self.n_vocab)
        self._taps = taps
        self.num_decodes = 0  # and the end of the context, which voids views just as a decode does
        self._nextn_tap = model.n_layer if final_by_nextn else None
        for layer in taps:
            if layer == self._nextn_tap:
                self._library.set_nextn(self.handle, True, False)
            else:
                self._library.set_layer_input(self.handle, layer, True)

    def decode(self, batch: Batch) -> TappedRows:
        self._cells.check_open()
        native = self._rows.fill(batch)
        with self.clock:
            code = self._library.api.llama_decode(self.handle, native)
            self._library.api.llama_synchronize(self.handle)  # on a GPU the work goes on behind the call
        check_decode(code, len(batch), self._library)
        self.num_decodes += 1
        n_embd = self._model.n_embd
        layers = [floats_at(self._tap_address(layer), len(batch), n_embd) for layer in self._taps]
        return TappedRows(self, self.num_decodes, layers)

    def _tap_address(self, layer: int) -> int:
        by_nextn = layer == self._nextn_tap
        address = (
            self._library.get_nextn(self.handle) if by_nextn else self._library.get_layer_input(self.handle, layer)
        )
        if not address:
            raise EngineError(f"the target gave no rows for layer {layer}")
        return int(address)

    def _logits(self, row: int) -> Floats:
        self._cells.check_open()
        address = self._library.get_logits_row(self.handle, row)
        if not address:
            raise EngineError(f"row {row} of the last decode has no logits")
        return self._logit_views.at(address)

    def sampler(self, params: SamplingParams) -> Sampler:
        if params.is_greedy and not params.has_penalties and not params.logit_bias:
            return GreedySampler(self._logits, params.logprobs)
        return ChainSampler(
            self._library, self.handle, params, read_row=self._logits, clock=self.clock, n_vocab=self.n_vocab
        )

    def propose(self, rows: Sequence[int], branches: int, *, confident: bool) -> Proposals:
        return best_of(map(self._logits, rows), branches, confident=confident)

    def remove(self, sequence: int, first_position: int) -> None:
        self._cells.remove(sequence, first_position)

    def share(self, source: int, target: int, first: int, end: int) -> None:
        if not self.is_unified:  # llama.cpp would copy whole caches, or abort
            raise EngineError("sequences with caches of their own cannot share cells")
        self._cells.share(source, target, first, end)

    def last_position(self, sequence: int) -> int:
        return self._cells.last_position(sequence)

    @property
    def native_s(self) -> float:
        return self.clock.seconds

    def close(self) -> None:
        if self.handle:
            self._library.api.llama_free(self.handle)
            self.handle = None
            self.num_decodes += 1
            self._cells.close()


def create_context(model: Model, params: ContextParams, *, other: object | None = None) -> object:
    """A llama_context. Raises ResourceError with llama.cpp's own words when it cannot be had."""
    api = model.library.api
    native = api.llama_context_default_params()
    native.n_ctx = params.n_ctx * params.num_sequences
    native.n_batch = native.n_ubatch = params.n_batch
    native.n_seq_max = params.num_ids
    if params.max_outputs is not None:
        native.n_outputs_max = params.num_outputs
    native.n_threads = native.n_threads_batch = params.threads
    native.type_k = native.type_v = look_up(KV_TYPES, params.kv_type, "--kv-type")
    native.flash_attn_type = look_up(FLASH_ATTENTION, params.flash_attention, "--flash-attn")
    native.kv_unified = params.unified
    native.no_perf = True
    if other is not None:
        native.ctx_other = other
    model.library.log.begin()
    handle = api.llama_init_from_model(model.handle, native)
    if not handle:
        message = f"no context of {params.num_sequences} x {params.n_ctx} positions: {model.library.log.reason()}"
        raise ResourceError(message, hint="a smaller --ctx or --parallel")
    return handle


def check_decode(code: int, num_rows: int, library: Library) -> None:
    if code == 0:
        return
    if code == 1:
        raise ResourceError(f"the cache has no room for {num_rows} more rows", hint="a larger --ctx")
    raise EngineError(f"llama_decode gave {code} for {num_rows} rows: {library.log.reason()}")


class RowMemory:
    """The arrays behind a llama_batch, owned by numpy so that rows are filled in a few assignments."""

    def __init__(self, library: Library, n_batch: int, num_sequences: int) -> None:
        self._tokens = np.zeros(n_batch, np.int32)
        self._positions = np.zeros(n_batch, np.int32)
        self._outputs = np.zeros(n_batch, np.int8)
        self._num_sequences = np.ones(n_batch, np.int32)
        self._sequences = np.zeros((n_batch, num_sequences), np.int32)
        stride = self._sequences.strides[0]
        self._addresses = (self._sequences.ctypes.data + stride * np.arange(n_batch)).astype(np.uintp)
        api = library.api
        self._batch = api.llama_batch()
        self._batch.token = self._tokens.ctypes.data_as(C.POINTER(C.c_int32))
        self._batch.pos = self._positions.ctypes.data_as(C.POINTER(C.c_int32))
        self._batch.logits = self._outputs.ctypes.data_as(C.POINTER(C.c_int8))
        self._batch.n_seq_id = self._num_sequences.ctypes.data_as(C.POINTER(C.c_int32))
        self._batch.seq_id = self._addresses.ctypes.data_as(C.POINTER(C.POINTER(C.c_int32)))

    def fill(self, batch: Batch) -> object:
        n = len(batch)
        if not 0 < n <= len(self._tokens):
            raise EngineError(f"a batch of {n} rows does not fit {len(self._tokens)}")
        self._tokens[:n] = batch.tokens
        self._positions[:n] = batch.positions
        self._outputs[:n] = batch.outputs
        for row, sequences in enumerate(batch.sequences):
            self._num_sequences[row] = len(sequences)
            self._sequences[row, : len(sequences)] = sequences
        self._batch.n_tokens = n
        return self._batch
