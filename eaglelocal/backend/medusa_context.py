"""The context of a Medusa head: it drafts several tokens from one state of the target, and keeps no cells.

Runs llama.cpp's `eagle3` graph in a way that it was not made for. A part of the head computes x + silu(W x + b) and
multiplies it by an lm_head. The encoder, a matrix, holds all W; native code adds the rest; the decoder, whose attention
and feed-forward are zero, norms each row and multiplies it by the lm_head. The norm changes no order of logits, and
native code undoes it for the confidences.
"""

from __future__ import annotations

import ctypes as C
from array import array
from collections.abc import Sequence

import numpy as np

from eaglelocal.backend.context import LlamaContext
from eaglelocal.backend.context_params import ContextParams
from eaglelocal.backend.head_cells import HeadCells
from eaglelocal.backend.llama_library import native_error
from eaglelocal.backend.model import LlamaModel
from eaglelocal.backend.native_step import fill_struct
from eaglelocal.backend.top_tokens import TopTokens, num_ranked
from eaglelocal.core.batch import Floats, Proposals
from eaglelocal.core.records import dataclass
from eaglelocal.errors import EngineError


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
        # masked, because llama.cpp returns NULL for a batch of one row otherwise
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

    def propose(self, states: Sequence[Floats], depth: int, branches: int) -> Proposals:
        medusa, n = self._medusa, len(states)
        if not (0 < n * depth <= self.max_rows and depth <= medusa.num_parts):
            raise EngineError(f"{n} x {depth} rows do not fit {self.max_rows}, of {medusa.num_parts} heads")
        ranked, top = num_ranked(branches, self._target.n_vocab, confident=True), self._top_tokens
        top.reserve(depth * n * ranked)
        rows = np.ascontiguousarray(states, np.float32)
        if rows.shape != (n, medusa.state_width):
            raise EngineError(f"states of shape {rows.shape}, expected {(n, medusa.state_width)}")
        biases = None if self._biases is None else self._biases.buffer_info()[0]
        sizes = (depth, medusa.num_layers, medusa.state_width, medusa.input_width, biases)
        taken = (ranked, top.tokens_at, top.shares_at)
        if code := self._native.draft_heads(self._address, n, rows.ctypes.data, *sizes, *taken):
            raise native_error(code, n * depth, self._library)
        return top.read(depth * n, ranked, branches, confident=True)
