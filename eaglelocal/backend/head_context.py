"""The context of an EAGLE head: encodes target features to states, and decodes (token, state) pairs.

Runs llama.cpp's `eagle3` graph, and adds what EAGLE-3.1 (arXiv 2605.09992; vLLM #42764) needs and the graph lacks: a
norm of each tapped row before the encoder (its gains are folded into fc), and a norm of the state that the next row
reads. Both happen in native code, which also works around the pitfalls of that graph. The upper layers of a head that
has several run in a second context (`UpperContext`), in the same native call.
"""

from __future__ import annotations

import ctypes as C
from array import array
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from eaglelocal.backend.context import LlamaContext, TappedFeatures
from eaglelocal.backend.context_params import ContextParams, create_context
from eaglelocal.backend.kv_cells import JointCells, KvCells
from eaglelocal.backend.llama_library import native_error
from eaglelocal.backend.model import LlamaModel
from eaglelocal.backend.native_step import HeadStruct, fill_struct
from eaglelocal.backend.top_tokens import TopTokens, num_ranked
from eaglelocal.backend.weight_loading import UpperWeights
from eaglelocal.core.batch import (
    NO_EXTRA_LEVELS,
    ExtraLevels,
    FeatureRows,
    Features,
    Floats,
    PairBatch,
    Proposals,
    Roots,
    State,
)
from eaglelocal.core.records import dataclass
from eaglelocal.errors import EngineError

FLOAT_BYTES = 4


class UpperContext:
    """The context of a head's upper layers. `fields`: the HeadStruct fields that native code needs to run it."""

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

    upper  the context of its upper layers; None: it has one layer
    cells  of all its layers
    """

    def __init__(
        self, model: LlamaModel, params: ContextParams, target: LlamaContext, *, row_size: int | None = None
    ) -> None:
        row_size = row_size or target.num_taps * target.tap_width
        self._library, self._native, self._target = model.library, model.library.native_step, target
        self._api = model.library.api
        self.n_batch = params.n_batch
        self.handle = create_context(model, params, other=target.handle)
        self.upper = None if model.upper is None else UpperContext(model.upper, params)
        own = KvCells(self._library, self.handle)
        cells = self.cells = JointCells(own, self.upper.cells) if self.upper else own
        self.remove, self.share, self.last_position = cells.remove, cells.share, cells.last_position
        self.swapped_bytes, self.swap_out, self.swap_in = cells.swapped_bytes, cells.swap_out, cells.swap_in
        self._feature_batch, self._pair_batch = (self._api.llama_batch_ext_init(self.handle) for _ in range(2))
        self._struct = fill_struct(
            HeadStruct(),
            api=self._native.api,
            target=target.address,
            context=self.handle,
            memory=self.cells.memory,
            features=self._feature_batch,
            pairs=self._pair_batch,
            n_batch=params.n_batch,
            row=(C.c_float * row_size)(),
            row_size=row_size,
            **(self.upper.fields if self.upper else {}),
        )
        self._address = C.addressof(self._struct)

    def _rows_of(self, features: Features | Floats) -> list[int]:
        """Return the rows of the target's last decode that the features refer to.

        Raises EngineError if they are another target's.
        """
        if not isinstance(features, TappedFeatures) or features.decode.context is not self._target:
            raise EngineError("a head takes features of its own target only")
        features.check()
        return features.rows

    @property
    def native_s(self) -> float:
        return self.cells.native_s + float(self._struct.native_s)

    def close(self) -> None:
        if self.handle:
            self._api.llama_batch_ext_free(self._feature_batch)
            self._api.llama_batch_ext_free(self._pair_batch)
            self._api.llama_free(self.handle)
            if self.upper:
                self.upper.close()
            self.handle = self._struct.context = None
            self.cells.close()


@dataclass(frozen=True, slots=True)
class HeadFormat:
    """Parts of a head that llama.cpp's graph lacks: the two norms of EAGLE-3.1, and rows of other than three taps."""

    tap_eps: float | None = None  # `fc_norm`: epsilon of the norm of each tapped row
    output_gains: Floats | None = None  # [width]; `norm_output`: gains of the norm of the fed-back state
    output_eps: float = 1e-5
    row_size: int | None = None  # numbers that the encoder reads, zeros after the tapped states; None: those alone


PLAIN_HEAD = HeadFormat()


class LlamaHeadContext(HeadCells):
    """An EAGLE head or MTP layer over llama.cpp. Implements core.ports.HeadContext.

    has_encoder      False: the tapped rows are the states themselves, as an MTP layer takes them
    reads_cache      it has no cells of its own, and attends to the target's
    num_layers       MTP layers, each of which drafts one token; else 1
    selects_outputs  they return states of output rows alone; else all rows of a call are outputs, or none
    """

    def __init__(
        self,
        model: LlamaModel,
        params: ContextParams,
        *,
        target: LlamaContext,
        form: HeadFormat = PLAIN_HEAD,
        has_encoder: bool = True,
        reads_cache: bool = False,
        num_layers: int = 1,
        selects_outputs: bool = False,
    ) -> None:
        self.width = model.n_embd_out
        if not has_encoder and self.width != target.num_taps * target.tap_width:
            raise EngineError(f"states of width {self.width} cannot be rows of {target.num_taps} x {target.tap_width}")
        super().__init__(model, params, target, row_size=form.row_size)
        self.forget = self.cells.forget
        # with output masking: without it llama.cpp returns NULL for a batch of one row. Upper layers need the rows of
        # all pairs, but no logits.
        self._library.set_nextn(self.handle, True, self.upper is None)
        self._top_tokens = TopTokens()
        self._state_bytes = FLOAT_BYTES * self.width
        self._max_encoded = target.n_batch  # as many as the target decodes at once
        self._encoded = (C.c_char * (self._max_encoded * self._state_bytes))()
        self._states = (C.c_char * (self.n_batch * self._state_bytes))()
        gains = form.output_gains
        fill_struct(
            self._struct,
            width=self.width,
            tap_eps=-1.0 if form.tap_eps is None else form.tap_eps,
            output_gains=None if gains is None else (C.c_float * self.width)(*gains.tolist()),
            output_eps=form.output_eps,
            encoded=self._encoded,
            states=self._states,
            has_encoder=has_encoder,
            reads_cache=reads_cache,
            num_layers=num_layers,
            selects_outputs=selects_outputs,
        )
        if not target.has_head:  # otherwise it was opened as a replacement, perhaps while the target decodes
            self.attach()

    def attach(self) -> None:
        """Encode the rows of every decode of the target from now on. Call it between decodes."""
        self._target.attach_head(self._address)

    def encode(self, features: Sequence[Features | Floats]) -> list[State]:
        self.cells.check_open()
        return [state for part in features for state in self._encode(part)]

    def _encode(self, part: Features | Floats) -> list[State]:
        if isinstance(part, np.ndarray):
            kept, size = np.ascontiguousarray(part, np.float32), self._max_encoded
            pieces = [kept[i : i + size] for i in range(0, len(kept), size)]
            return [state for piece in pieces for state in self._encode_now(len(piece), None, piece.ctypes.data)]
        rows = self._rows_of(part)
        self._struct.were_states_read = True
        if self._struct.num_encoded:  # already encoded together with the target's decode
            return read_states(self._encoded, rows, self._state_bytes)
        return self._encode_now(len(rows), array("i", rows), None)

    def _encode_now(self, num_rows: int, rows: array[int] | None, kept: int | None) -> list[State]:
        rows_at = None if rows is None else rows.buffer_info()[0]
        if code := self._native.encode(self._address, num_rows, rows_at, kept):
            raise native_error(code, num_rows, self._library)
        return read_states(self._encoded, range(num_rows), self._state_bytes)

    def decode(
        self,
        batch: PairBatch,
        num_choices: int,
        *,
        confident: bool,
        depth: int = 1,
        extra_levels: ExtraLevels = NO_EXTRA_LEVELS,
        layer: int = 0,
    ) -> Proposals:
        n, n_out, is_layered = len(batch.tokens), len(batch.outputs), self._struct.num_layers > 1
        most_rows = n + n_out * (self._struct.num_layers - 1 - layer)
        if not 0 < n <= most_rows <= self.n_batch:
            raise EngineError(f"a batch of {most_rows} pairs does not fit {self.n_batch}")
        ranked, top = num_ranked(num_choices, self._target.n_vocab, confident=confident), self._top_tokens
        top.reserve((depth + extra_levels.num_levels) * n_out * ranked)
        rows = array("i", [*batch.tokens, *batch.positions, *batch.sequences, *batch.outputs])
        states = b"".join(batch.states)
        given = (self._address, n, rows.buffer_info()[0], states, n_out)
        taken = (depth, *extra_levels, ranked, top.tokens_at, top.shares_at)
        native = self._native
        code = native.draft_layers(*given, layer, *taken) if is_layered else native.draft(*given, *taken)
        if code:
            raise native_error(code, n, self._library)
        num_proposed = self._struct.num_levels * n_out
        proposals = top.read(num_proposed, ranked, num_choices, confident=confident)
        num_states = num_proposed if is_layered else n_out
        proposals.states.extend(read_states(self._states, range(num_states), self._state_bytes))
        return proposals

    def close(self) -> None:
        if self.handle:
            self._target.detach_head(self._address)
        super().close()


def read_states(memory: C.Array[C.c_char], rows: Iterable[int], size: int) -> list[State]:
    """Return copies of the states in these rows of a buffer."""
    read: Callable[[slice], State] = memory.__getitem__  # type: ignore[assignment]  # slices of chars are bytes
    return [read(slice(row * size, (row + 1) * size)) for row in rows]


# ---- block heads, which keep target features, and predict all tokens of a block at once
#
# Runs llama.cpp's `dflash` graph. Rows of features become keys and values in its cache, at their positions in the
# text, without outputs. A block is decoded after them, each of its rows attending to all others; the next call
# removes it.
@dataclass(frozen=True, slots=True)
class BlockFormat:
    """The format of blocks that a head was trained on.

    mask        the token that stands for unknown ones
    skips_root  the root's row predicts nothing
    is_causal   rows of a block attend only to those before them
    lattice     DFlash2: candidates per row, scored after each candidate of the row before; 0: rows give logits
    """

    mask: int
    skips_root: bool = True
    is_causal: bool = False
    lattice: int = 0


class LlamaBlockContext(HeadCells):
    """A block head over llama.cpp. Implements core.ports.BlockContext."""

    def __init__(self, model: LlamaModel, params: ContextParams, block: BlockFormat, *, target: LlamaContext) -> None:
        super().__init__(model, params, target)
        self._block, self._top_tokens = block, TopTokens()
        self._api.llama_set_causal_attn(self.handle, block.is_causal)
        if block.lattice:
            self._library.set_nextn(self.handle, True, False)
        fill_struct(self._struct, width=model.n_embd, tap_eps=-1.0)

    def show(self, pieces: Sequence[FeatureRows]) -> None:
        self.cells.check_open()
        decoded = [piece for piece in pieces if not isinstance(piece.features, np.ndarray)]
        if decoded:
            self._write(decoded, array("i", [row for piece in decoded for row in self._rows_of(piece.features)]), None)
        for piece in pieces:
            if isinstance(piece.features, np.ndarray):
                self._write([piece], None, np.ascontiguousarray(piece.features, np.float32).ctypes.data)

    def _write(self, pieces: Sequence[FeatureRows], rows: array[int] | None, kept: int | None) -> None:
        positions = [p for piece in pieces for p in range(piece.position, piece.position + len(piece.features))]
        sequences = [piece.sequence for piece in pieces for _ in range(len(piece.features))]
        ints, rows_at = array("i", [*positions, *sequences]), None if rows is None else rows.buffer_info()[0]
        if code := self._native.write_features(self._address, len(positions), ints.buffer_info()[0], rows_at, kept):
            raise native_error(code, len(positions), self._library)

    def fill(self, roots: Roots, depth: int, num_choices: int) -> Proposals:
        self.cells.check_open()
        n, num_skipped = len(roots.tokens), int(self._block.skips_root)
        if not 0 < n * (num_skipped + depth) <= self.n_batch:
            raise EngineError(f"{n} blocks of {num_skipped + depth} rows do not fit {self.n_batch}")
        vocab_size = self._block.lattice or self._target.n_vocab
        ranked, top = num_ranked(num_choices, vocab_size, confident=True), self._top_tokens
        top.reserve(depth * n * ranked)
        ints = array("i", [*roots.tokens, *roots.positions, *roots.sequences])
        block = (self._block.mask, num_skipped, depth, self._block.lattice, ranked, top.tokens_at, top.shares_at)
        if code := self._native.draft_blocks(self._address, n, ints.buffer_info()[0], *block):
            raise native_error(code, n * (num_skipped + depth), self._library)
        return top.read(depth * n, ranked, num_choices, confident=True)


# ---- Medusa heads, which draft several tokens from one state of the target, and keep no cells
#
# Runs llama.cpp's `eagle3` graph in a way that it was not made for. A part of the head computes x + silu(W x + b) and
# multiplies it by an lm_head. The encoder, a matrix, holds all W; native code adds the rest; the decoder, whose
# attention and feed-forward are zero, norms each row and multiplies it by the lm_head. The norm does not change the
# order of logits, and native code undoes it for the confidences.
@dataclass(frozen=True, slots=True)
class MedusaFormat:
    """The sizes of a head.

    state_width  of the target's states
    input_width  of the rows that the encoder reads
    biases       [parts, layers, state_width]; None: there are none
    rms_eps      of the norm that is undone
    """

    num_parts: int
    num_layers: int
    state_width: int
    input_width: int
    biases: Floats | None
    rms_eps: float


class LlamaMedusaContext(HeadCells):
    """A Medusa head over llama.cpp. Implements core.ports.MedusaContext."""

    def __init__(self, model: LlamaModel, params: ContextParams, medusa: MedusaFormat, *, target: LlamaContext) -> None:
        if target.tap_width != medusa.state_width:
            widths = f"{medusa.state_width}, the target's have {target.tap_width}"
            raise EngineError(f"the head reads states of width {widths}")
        super().__init__(model, params, target)
        # with output masking: without it llama.cpp returns NULL for a batch of one row
        self._library.set_nextn(self.handle, True, True)
        self._medusa, self._top_tokens = medusa, TopTokens()
        self.max_rows = min(params.n_batch, params.n_ctx)
        biases = None if medusa.biases is None else array("f", medusa.biases.reshape(-1).tolist())
        self._biases = biases  # native code reads it
        fill_struct(
            self._struct,
            width=model.n_embd,
            output_eps=medusa.rms_eps,
            row=(C.c_float * max(medusa.input_width, model.n_embd))(),
            states=(C.c_float * (self.max_rows * medusa.state_width))(),
        )

    def propose(self, states: Sequence[Floats], depth: int, num_choices: int) -> Proposals:
        medusa, n = self._medusa, len(states)
        if not (0 < n * depth <= self.max_rows and depth <= medusa.num_parts):
            raise EngineError(f"{n} x {depth} rows do not fit {self.max_rows}, of {medusa.num_parts} heads")
        ranked, top = num_ranked(num_choices, self._target.n_vocab, confident=True), self._top_tokens
        top.reserve(depth * n * ranked)
        rows = np.ascontiguousarray(states, np.float32)
        if rows.shape != (n, medusa.state_width):
            raise EngineError(f"states of shape {rows.shape}, expected {(n, medusa.state_width)}")
        biases = None if self._biases is None else self._biases.buffer_info()[0]
        sizes = (depth, medusa.num_layers, medusa.state_width, medusa.input_width, biases)
        taken = (ranked, top.tokens_at, top.shares_at)
        if code := self._native.draft_heads(self._address, n, rows.ctypes.data, *sizes, *taken):
            raise native_error(code, n * depth, self._library)
        return top.read(depth * n, ranked, num_choices, confident=True)
