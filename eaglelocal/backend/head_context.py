"""The context of an EAGLE head: encodes target features to states, and decodes (token, state) pairs.

Runs llama.cpp's `eagle3` graph, and adds what EAGLE-3.1 (arXiv 2605.09992; vLLM #42764) needs and the graph lacks: a
norm of each tapped row before the encoder (its gains are folded into fc), and a norm of the state that the next row
reads. Both happen in native code, which also works around the pitfalls of that graph. The upper layers of a head that
has several run in a second context (head_cells.py), in the same native call.
"""

from __future__ import annotations

import ctypes as C
from array import array
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from eaglelocal.backend.context import LlamaContext, TappedFeatures
from eaglelocal.backend.context_params import ContextParams
from eaglelocal.backend.head_cells import HeadCells
from eaglelocal.backend.llama_library import native_error
from eaglelocal.backend.model import LlamaModel
from eaglelocal.backend.native_step import fill_struct
from eaglelocal.backend.top_tokens import TopTokens, num_ranked
from eaglelocal.core.batch import NO_EXTRA_LEVELS, ExtraLevels, Features, Floats, PairBatch, Proposals, State
from eaglelocal.core.records import dataclass
from eaglelocal.errors import EngineError

FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """The two norms that EAGLE-3.1 adds; without both it is EAGLE-3."""

    tap_eps: float | None = None  # `fc_norm`: epsilon of the norm of each tapped row
    output_gains: Floats | None = None  # [width]; `norm_output`: gains of the norm of the fed-back state
    output_eps: float = 1e-5


NO_NORMS = HeadNorms()


class LlamaHeadContext(HeadCells):
    """An EAGLE head or MTP layer over llama.cpp. Implements core.ports.HeadContext.

    has_encoder  False: the tapped rows are the states themselves, as an MTP layer takes them
    reads_cache  it has no cells of its own, and attends to the target's
    num_layers   MTP layers of which each drafts one token; else 1
    selects_outputs  they return states of output rows alone; else all rows of a call are outputs, or none
    """

    def __init__(
        self,
        model: LlamaModel,
        params: ContextParams,
        *,
        target: LlamaContext,
        norms: HeadNorms = NO_NORMS,
        has_encoder: bool = True,
        reads_cache: bool = False,
        num_layers: int = 1,
        selects_outputs: bool = False,
    ) -> None:
        self.width = model.n_embd_out
        if not has_encoder and self.width != target.num_taps * target.tap_width:
            raise EngineError(f"states of width {self.width} cannot be rows of {target.num_taps} x {target.tap_width}")
        super().__init__(model, params, target)
        self.forget = self._cells.forget
        # masked, because llama.cpp returns NULL for a batch of one row otherwise.
        # Upper layers need the rows of all pairs, and no logits of them.
        self._library.set_nextn(self.handle, True, self._upper is None)
        self._top_tokens = TopTokens()
        self._state_bytes = FLOAT_BYTES * self.width
        self._max_encoded = target.n_batch  # as many as the target decodes at once
        self._encoded = (C.c_char * (self._max_encoded * self._state_bytes))()
        self._states = (C.c_char * (self.n_batch * self._state_bytes))()
        self._set_norms(norms)
        fill_struct(
            self._struct,
            has_encoder=has_encoder,
            reads_cache=reads_cache,
            num_layers=num_layers,
            selects_outputs=selects_outputs,
        )
        if not target.has_head:  # otherwise it is opened to replace that one, perhaps while the target decodes
            self.attach()

    def _set_norms(self, norms: HeadNorms) -> None:
        gains = norms.output_gains
        fill_struct(
            self._struct,
            width=self.width,
            tap_eps=-1.0 if norms.tap_eps is None else norms.tap_eps,
            output_gains=None if gains is None else (C.c_float * self.width)(*gains.tolist()),
            output_eps=norms.output_eps,
            encoded=self._encoded,
            states=self._states,
        )

    def attach(self) -> None:
        """Encode the rows of every decode of the target from now on. Call it between decodes."""
        self._target.attach_head(self._address)

    def encode(self, features: Sequence[Features | Floats]) -> list[State]:
        self._cells.check_open()
        return [state for part in features for state in self._encode(part)]

    def _encode(self, part: Features | Floats) -> list[State]:
        if isinstance(part, np.ndarray):
            return self._encode_kept(np.ascontiguousarray(part, np.float32))
        if not isinstance(part, TappedFeatures) or part.decode.context is not self._target:
            raise EngineError("a head takes features of its own target only")
        part.check()
        self._struct.were_states_read = True
        if self._struct.num_encoded:  # already encoded together with the target's decode
            return read_states(self._encoded, part.rows, self._state_bytes)
        rows = array("i", part.rows)
        return self._encode_now(len(rows), rows.buffer_info()[0], None)

    def _encode_kept(self, part: Floats) -> list[State]:
        pieces = [part[i : i + self._max_encoded] for i in range(0, len(part), self._max_encoded)]
        return [state for piece in pieces for state in self._encode_now(len(piece), None, piece.ctypes.data)]

    def _encode_now(self, num_rows: int, rows: int | None, kept: int | None) -> list[State]:
        if code := self._native.encode(self._address, num_rows, rows, kept):
            raise native_error(code, num_rows, self._library)
        return read_states(self._encoded, range(num_rows), self._state_bytes)

    def decode(
        self,
        batch: PairBatch,
        branches: int,
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
        ranked, top = num_ranked(branches, self._target.n_vocab, confident=confident), self._top_tokens
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
        proposals = top.read(num_proposed, ranked, branches, confident=confident)
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
