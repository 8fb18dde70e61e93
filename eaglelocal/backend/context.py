"""The context of a target (or draft model): it decodes rows, samples from them and copies features.

Owns the llama_context. Results are owned by Python, except features: they refer to rows in llama.cpp's memory, and
reading them fails once the next decode has overwritten them.
"""

from __future__ import annotations

import ctypes as C
from array import array
from collections.abc import Sequence
from itertools import chain
from typing import cast

import numpy as np

from eaglelocal.backend.constraint_compiler import ConstrainedSampler
from eaglelocal.backend.context_params import ContextParams, create_context
from eaglelocal.backend.image_encoder import ImageChunk
from eaglelocal.backend.kv_cells import KvCells, removal_error
from eaglelocal.backend.lazy_clearing import lazy_clearing
from eaglelocal.backend.llama_library import NativeClock, native_error
from eaglelocal.backend.model import ContextAdapters, LlamaModel
from eaglelocal.backend.native_step import (
    ALREADY_READ,
    CANNOT_REMOVE,
    UNKNOWN,
    NativeStep,
    TargetStruct,
    fill_struct,
    make_block_maxima,
)
from eaglelocal.backend.samplers import (
    Argmax,
    ChainSampler,
    FilteredChain,
    LlamaSamplerChain,
    WholeChain,
    choose_filter,
)
from eaglelocal.backend.top_tokens import TopTokens, num_ranked
from eaglelocal.core.batch import Batch, Floats, Proposals
from eaglelocal.core.constraint import Constraint
from eaglelocal.core.image import ImageRows
from eaglelocal.core.ports import Sampler
from eaglelocal.core.records import dataclass
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.errors import EngineError, IncompatibleError
from eaglelocal.gguf.architectures import HYPER_CONNECTED_ARCHITECTURES


@dataclass(frozen=True, slots=True)
class TappedRows:
    """The outputs of one decode: its layer inputs. Implements core.batch.Outputs."""

    context: LlamaContext
    number: int  # of the decode
    num_rows: int

    def features(self, rows: list[int]) -> TappedFeatures | None:
        if not self.context.gives_taps:
            return None
        if rows and not 0 <= min(rows) <= max(rows) < self.num_rows:
            raise EngineError(f"the decode had {self.num_rows} rows; there are no features of rows {rows}")
        features = TappedFeatures(self, rows)
        features.check()
        return features


@dataclass(frozen=True, slots=True)
class TappedFeatures:
    """References to rows in llama.cpp's memory, valid until the next decode. Implements core.batch.Features."""

    decode: TappedRows
    rows: list[int]

    def __len__(self) -> int:
        return len(self.rows)

    def check(self) -> None:
        if self.decode.number != self.decode.context.num_decodes:
            raise EngineError("features of a decode were read after the next decode")

    def after(self, num_rows: int) -> TappedFeatures:
        return TappedFeatures(self.decode, self.rows[num_rows:])

    def copied(self) -> Floats:
        self.check()
        return self.decode.context.copy_taps(self.rows)


class LlamaContext:
    """A target or draft model over llama.cpp. Implements core.ports.Context.

    taps             layer inputs to copy for every row; n_layer is the state after the last layer, n_layer + 1 the
                     state after the output norm, which exists only if all rows of a decode are outputs
    final_by_nextn   read that final state as llama.cpp's "nextn" state, not as a layer input
    normed_by_nextn  read the one after the output norm so, which all rows then have
    is_asynchronous  a GPU computes some layers: `submit` returns before they are done. Otherwise it does all the work,
                     in one native call, because a second one would run with cold caches
    """

    def __init__(
        self,
        model: LlamaModel,
        params: ContextParams,
        *,
        taps: tuple[int, ...] = (),
        final_by_nextn: bool = False,
        normed_by_nextn: bool = False,
        is_asynchronous: bool = False,
    ) -> None:
        self._library, self._native = model.library, model.library.native_step
        self._constraints = model.constraints
        self.clock = NativeClock()  # counts time in samplers and images
        nextn_tap, normed_tap = choose_special_taps(model.n_layer, taps, final=final_by_nextn, normed=normed_by_nextn)
        self.tap_width = find_tap_width(model, taps, nextn_tap, normed_tap)
        with lazy_clearing(self._library, 2 * model.n_layer) as self.population:  # keys and values
            self.handle = create_context(model, params)
        self.use_adapters = ContextAdapters(self._library, self.handle, model.adapters).use
        has_fixed_cells = bool(params.num_snapshots) and params.num_sequences > 1
        cells = self._cells = KvCells(self._library, self.handle, has_fixed_cells=has_fixed_cells)
        self.save, self.restore, self.last_position = cells.save, cells.restore, cells.last_position
        self.swapped_bytes, self.swap_out, self.swap_in = cells.swapped_bytes, cells.swap_out, cells.swap_in
        self.n_batch = params.n_batch
        self.n_vocab, self.end_tokens = model.vocabulary.n_tokens, model.vocabulary.end_tokens
        self.n_ctx, self.is_asynchronous = params.n_ctx, is_asynchronous
        self._submitted: tuple[int, array[int]] | None = None  # number of rows, and the memory that native code reads
        self.is_unified, self.num_branches = params.unified, params.num_branches
        self.undivided = params.num_snapshots and params.num_snapshots + 1
        self.num_taps = len(taps)
        self.num_decodes = 0  # closing counts too: like a decode, it invalidates earlier rows
        self._top_tokens = TopTokens()
        self._best_tokens = (C.c_int32 * params.n_batch)(*[UNKNOWN] * params.n_batch)
        self._struct = fill_struct(
            target_struct(self, self._native, taps, nextn_tap, normed_tap),
            memory=self._cells.memory,
            best_tokens=self._best_tokens,
            is_greedy=(C.c_int8 * params.num_ids)(),
        )
        self.address = C.addressof(self._struct)  # of the native struct
        for layer in taps:
            if layer == nextn_tap:
                self._library.set_nextn(self.handle, True, False)
            elif layer != normed_tap:  # native code requests that one
                self._library.set_layer_input(self.handle, layer, True)
        if has_fixed_cells:
            self.run_once(params.num_sequences)  # gives each sequence a cell, in order; see KvCells

    def run_once(self, num_sequences: int = 1) -> None:
        """Decode one row of each sequence and remove them: llama.cpp allocates tap buffers only in the first decode."""
        rows = range(num_sequences)
        self.decode(Batch([0] * num_sequences, [0] * num_sequences, [(row,) for row in rows], [True] * num_sequences))
        for row in rows:
            self.remove(row, 0)

    def submit(self, batch: Batch) -> None:
        n = len(batch.tokens)
        if not 0 < n <= self.n_batch:
            raise EngineError(f"a batch of {n} rows does not fit {self.n_batch}")
        counts, sequences = map(len, batch.sequences), chain.from_iterable(batch.sequences)
        removals = self._cells.take_removals(batch.sequences)
        rows = (*batch.tokens, *batch.positions, *batch.outputs, *counts, *sequences, *chain(*removals.items()))
        ints = array("i", rows)
        start = self._native.submit if self.is_asynchronous else self._native.decode
        code = start(self.address, n, len(removals), ints.buffer_info()[0])
        if code == CANNOT_REMOVE:
            raise removal_error(removals)
        if code:
            raise native_error(code, n, self._library, n_ctx=self.n_ctx)
        self._cells.clear_copies()
        self.num_decodes += 1
        self._submitted = n, ints

    def collect(self) -> TappedRows:
        submitted, self._submitted = self._submitted, None
        if submitted is None:
            raise EngineError("there is no decode to collect")
        n, ints = submitted
        if self.is_asynchronous and (code := self._native.collect(self.address, n, ints.buffer_info()[0])):
            raise native_error(code, n, self._library, n_ctx=self.n_ctx)
        if self._library.lost_work:
            raise EngineError(f"the GPU has failed at {n} rows: {self._library.lost_work}")
        return TappedRows(self, self.num_decodes, n)

    def decode(self, batch: Batch) -> TappedRows:
        self.submit(batch)
        return self.collect()

    def decode_image(self, sequence: int, position: int, rows: ImageRows) -> None:
        """Decode an image; `rows` must come from the ImageReader of this context's model."""
        if not isinstance(rows, ImageChunk):
            raise EngineError("the image was not prepared by this model's reader")
        self._cells.remove_pending([(sequence,)])
        self.num_decodes += 1
        if self._struct.has_normed:  # else all rows of the image would be outputs
            self._struct.has_normed = False
            self._library.api.llama_set_embeddings(self.handle, False)
        with self.clock:
            rows.decode(self.handle, sequence, position, self.n_batch)

    @property
    def has_head(self) -> bool:
        """True if a head encodes the rows of every decode."""
        return bool(self._struct.head)

    def attach_head(self, head: int) -> None:
        """Make this head (the address of its struct) the only one that encodes the rows of every decode from now on."""
        self._struct.head = head

    def detach_head(self, head: int) -> None:
        """Stop this head from encoding rows; if another one is attached by now, that one stays."""
        if self._struct.head == head:
            self._struct.head = None

    @property
    def gives_taps(self) -> bool:
        """True if the last decode's rows have the tapped states."""
        return self.num_taps > 0 and (self._struct.normed_tap < 0 or bool(self._struct.has_normed))

    def copy_taps(self, rows: list[int]) -> Floats:
        copied = np.empty((len(rows), self.num_taps, self.tap_width), np.float32)
        indices = array("i", rows)
        if code := self._native.copy_tapped(
            self.address, len(rows), indices.buffer_info()[0], -1.0, copied.ctypes.data
        ):
            raise native_error(code, len(rows), self._library)
        return copied

    def _logits(self, row: int) -> Floats:
        """Return a view [vocab] of a row's logits, valid until the next call into the context."""
        self._cells.check_open()
        address = self._library.get_logits_row(self.handle, row)
        if not address:
            raise missing_logits(row)
        logits = (C.c_float * self.n_vocab).from_address(address)
        return cast(Floats, np.frombuffer(logits, np.float32))  # type: ignore[call-overload]

    def logits(self, row: int) -> Floats:
        """Return a copy [vocab] of the last decode's logits of a row."""
        return self._logits(row).copy()

    def _read_best_token(self, row: int) -> int:
        """Return the most likely token of a row.

        Native code computes these in advance where they are likely to be read.
        """
        token: int = self._best_tokens[row] if 0 <= row < self.n_batch else UNKNOWN
        if token < 0:
            token = self._native.best_token(self.address, row)
        if token < 0:
            self._cells.check_open()
            raise missing_logits(row)
        self._best_tokens[row] = ALREADY_READ
        return token

    def sampler(self, params: SamplingParams, constraint: Constraint | None = None) -> Sampler:
        if constraint is not None:
            matcher, end_token = self._constraints.matcher(constraint), self._constraints.end_token
            chain = self._chain(params, is_constrained=True)
            return ConstrainedSampler(chain, matcher, self._logits, params.logprobs, end_token=end_token)
        if params.is_greedy and not params.has_penalties and not params.logit_bias:
            return ChainSampler(Argmax(self._read_best_token), self._logits, params.logprobs)
        return ChainSampler(self._chain(params), self._logits, params.logprobs)

    def _chain(self, params: SamplingParams, *, is_constrained: bool = False) -> LlamaSamplerChain:
        token_filter, n_vocab = choose_filter(params), self.n_vocab
        if token_filter is not None:
            return FilteredChain(
                self._library, params, token_filter, draw=self._draw, n_vocab=n_vocab, is_constrained=is_constrained
            )
        return WholeChain(self._library, self.handle, params, read_row=self._logits, clock=self.clock, n_vocab=n_vocab)

    def _draw(self, *arguments: object) -> int:
        self._cells.check_open()
        return int(self._native.draw(self.address, *arguments))

    def propose(self, rows: Sequence[int], num_choices: int, *, confident: bool) -> Proposals:
        self._cells.check_open()
        ranked, top = num_ranked(num_choices, self.n_vocab, confident=confident), self._top_tokens
        top.reserve(len(rows) * ranked)
        indices = array("i", rows)
        arguments = (indices.buffer_info()[0], ranked, top.tokens_at, top.shares_at)
        if code := self._native.rank_rows(self.address, len(rows), *arguments):
            raise native_error(code, len(rows), self._library)
        return top.read(len(rows), ranked, num_choices, confident=confident)

    def remove(self, sequence: int, first_position: int) -> None:
        self._cells.remove_later(sequence, first_position)

    def share(self, source: int, target: int, first: int, end: int) -> None:
        if self.is_unified:
            self._cells.share(source, target, first, end)
        elif first == 0:
            self._cells.copy(source, target, end)
        else:
            raise EngineError(f"separate caches are copied from position 0, not from position {first}")

    @property
    def native_s(self) -> float:
        return self.clock.seconds + self._cells.native_s + float(self._struct.native_s)

    def close(self) -> None:
        if self.handle:
            self._library.api.llama_free(self.handle)
            self.handle = self._struct.context = None
            self._best_tokens[:] = [UNKNOWN] * self.n_batch
            self.num_decodes += 1
            self._cells.close()


def choose_special_taps(n_layer: int, taps: tuple[int, ...], *, final: bool, normed: bool) -> tuple[int, int]:
    """Return the layer read as "nextn" state, and the layer read as embedding after the output norm; -1 for none."""
    after_norm = n_layer + 1
    if after_norm not in taps:
        return n_layer if final else -1, -1
    return (after_norm, -1) if normed else (-1, after_norm)


def find_tap_width(model: LlamaModel, taps: tuple[int, ...], nextn_tap: int, normed_tap: int) -> int:
    """Return the width of a tapped row; if the "nextn" state holds a token's parallel states, the width of all.

    Raises IncompatibleError if llama.cpp's rows have another stride than the states are wide.
    """
    if model.n_embd_out == model.n_embd or not {nextn_tap, normed_tap}.intersection(taps):
        return model.n_embd
    if taps == (nextn_tap,) and model.architecture in HYPER_CONNECTED_ARCHITECTURES:
        return model.n_embd_out
    raise IncompatibleError(f"the model's states are {model.n_embd} wide, its rows {model.n_embd_out}")


def target_struct(
    context: LlamaContext, native_step: NativeStep, taps: tuple[int, ...], nextn_tap: int, normed_tap: int
) -> TargetStruct:
    n_batch = context.n_batch
    return fill_struct(
        TargetStruct(),
        api=native_step.api,
        context=context.handle,
        n_vocab=context.n_vocab,
        tap_width=context.tap_width,
        n_taps=len(taps),
        nextn_tap=nextn_tap,
        normed_tap=normed_tap,
        num_end_tokens=len(context.end_tokens),
        end_tokens=(C.c_int32 * len(context.end_tokens))(*context.end_tokens),
        taps=(C.c_int32 * len(taps))(*taps),
        tapped=(C.c_void_p * len(taps))(),
        sequences=(C.c_void_p * n_batch)(),
        outputs=(C.c_int8 * n_batch)(),
        row_sequences=(C.c_int32 * n_batch)(),
        block_maxima=make_block_maxima(context.n_vocab),
    )


def missing_logits(row: int) -> EngineError:
    return EngineError(f"row {row} of the last decode has no logits")
