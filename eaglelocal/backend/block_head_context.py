"""The context of a head that drafts in blocks: it keeps target features, and predicts all tokens of a block at once.

Runs llama.cpp's `dflash` graph. Rows of features become keys and values in its cache, at their positions in the text,
without outputs. A block is decoded after them, each of its rows attending to all others; the next call removes it.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

from eaglelocal.backend.context import LlamaContext, TappedFeatures
from eaglelocal.backend.context_params import ContextParams
from eaglelocal.backend.head_cells import HeadCells
from eaglelocal.backend.llama_library import native_error
from eaglelocal.backend.model import LlamaModel
from eaglelocal.backend.native_step import fill_struct
from eaglelocal.backend.top_tokens import TopTokens, num_ranked
from eaglelocal.core.batch import FeatureRows, Features, Proposals, Roots
from eaglelocal.core.records import dataclass
from eaglelocal.errors import EngineError


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """The format of blocks that a head was trained on.

    mask        the token that stands for one to be predicted
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
        self._cells.check_open()
        decoded = [piece for piece in pieces if not isinstance(piece.features, np.ndarray)]
        if decoded:
            self._write(decoded, array("i", [row for piece in decoded for row in self._rows_of(piece.features)]), None)
        for piece in pieces:
            if isinstance(piece.features, np.ndarray):
                self._write([piece], None, np.ascontiguousarray(piece.features, np.float32).ctypes.data)

    def _rows_of(self, features: Features | np.ndarray) -> list[int]:
        """Return the rows of the target's last decode that the features refer to.

        Raises EngineError for another target's.
        """
        if not isinstance(features, TappedFeatures) or features.decode.context is not self._target:
            raise EngineError("a head takes features of its own target only")
        features.check()
        return features.rows

    def _write(self, pieces: Sequence[FeatureRows], rows: array[int] | None, kept: int | None) -> None:
        positions = [p for piece in pieces for p in range(piece.position, piece.position + len(piece.features))]
        sequences = [piece.sequence for piece in pieces for _ in range(len(piece.features))]
        ints, rows_at = array("i", [*positions, *sequences]), None if rows is None else rows.buffer_info()[0]
        if code := self._native.write_features(self._address, len(positions), ints.buffer_info()[0], rows_at, kept):
            raise native_error(code, len(positions), self._library)

    def fill(self, roots: Roots, depth: int, branches: int) -> Proposals:
        self._cells.check_open()
        n, num_skipped = len(roots.tokens), int(self._block.skips_root)
        if not 0 < n * (num_skipped + depth) <= self.n_batch:
            raise EngineError(f"{n} blocks of {num_skipped + depth} rows do not fit {self.n_batch}")
        vocab_size = self._block.lattice or self._target.n_vocab
        ranked, top = num_ranked(branches, vocab_size, confident=True), self._top_tokens
        top.reserve(depth * n * ranked)
        ints = array("i", [*roots.tokens, *roots.positions, *roots.sequences])
        block = (self._block.mask, num_skipped, depth, self._block.lattice, ranked, top.tokens_at, top.shares_at)
        if code := self._native.draft_blocks(self._address, n, ints.buffer_info()[0], *block):
            raise native_error(code, n * (num_skipped + depth), self._library)
        return top.read(depth * n, ranked, branches, confident=True)
