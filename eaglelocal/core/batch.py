"""Plain data of a decode call: the rows that go in, and the results that are read afterwards."""

from __future__ import annotations

from dataclasses import field
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from eaglelocal.core.records import dataclass

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]  # cells of a sequence, in RAM
State = bytes  # float32 [width] of an EAGLE head, owned; opaque to drafters, which only keep and pass states


@dataclass(frozen=True, slots=True)
class Batch:
    """Token rows for a target or a draft model: one sequence a row (a chain) or several (a tree: sequence_ids.py).

    An output row is one whose logits can be sampled; rows are addressed by their index in the batch.
    """

    tokens: list[int]  # [rows]
    positions: list[int]  # [rows]
    sequences: list[tuple[int, ...]]  # [rows]
    outputs: list[bool]  # [rows]

    def __len__(self) -> int:
        return len(self.tokens)


class Outputs(Protocol):
    """The results of one decode. Read them before the next decode: llama.cpp then overwrites them."""

    def features(self, rows: list[int]) -> Features | None:
        """Return the tapped states of these batch rows; None without taps."""


class Features(Protocol):
    """Tapped states of some rows of one decode. A head must encode them before the next decode, which voids them."""

    def __len__(self) -> int: ...

    def after(self, num_rows: int) -> Features:
        """Return the features without the first `num_rows` rows."""

    def copied(self) -> Floats:
        """Return an owned copy, [rows, taps, n_embd], that outlives the next decode."""


@dataclass(frozen=True, slots=True)
class PairBatch:
    """Rows for an EAGLE head: the pair (token at position + 1, state at position)."""

    tokens: list[int]  # [rows]
    states: list[State]  # [rows]
    positions: list[int]  # [rows]
    sequences: list[int]  # [rows]
    outputs: list[int]  # batch rows to propose tokens for, in the order of the proposals


class FeatureRows(NamedTuple):
    """Tapped states of consecutive positions of a sequence, for a head; `position`: of the first."""

    sequence: int
    position: int
    features: Features | Floats


class Roots(NamedTuple):
    """The roots after which blocks are drafted: the last sampled token of each sequence."""

    tokens: list[int]
    positions: list[int]
    sequences: list[int]


class ExtraLevels(NamedTuple):
    """Optional draft levels beyond those asked for, while all tokens reach this confidence and none ends the answer."""

    num_levels: int = 0
    confidence: float = 1.0


NO_EXTRA_LEVELS = ExtraLevels()


@dataclass(frozen=True, slots=True)
class Proposals:
    """A draft model's proposals at its output rows, best first; for several levels, one level after another."""

    tokens: list[list[int]]  # [levels x output rows][num_choices]
    confidences: list[
        list[float]
    ]  # [levels x output rows][num_choices], see backend/top_tokens.py; NaN if not asked for
    states: list[State] = field(default_factory=list)  # [output rows] after the last level, input of the next rows
