"""Rows that go into one decode call, and what is asked back. Plain numpy, owned by Python."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Batch:
    """Token rows for a target or a draft model; one sequence a row (a chain) or several (a tree).

    An output row is one whose logits can be sampled; rows are addressed by their index in the batch.
    """

    tokens: list[int]  # [rows]
    positions: list[int]  # [rows]
    sequences: list[tuple[int, ...]]  # [rows]
    outputs: list[bool]  # [rows]

    def __len__(self) -> int:
        return len(self.tokens)


class Outputs(Protocol):
    """Owned copies of what one decode gave; stays valid when the context moves on."""

    @property
    def features(self) -> Floats | None: ...  # [rows, taps * n_embd], all rows, or None without taps


@dataclass(frozen=True, slots=True)
class PairBatch:
    """Rows for an EAGLE head: the pair (token at position + 1, state at position)."""

    tokens: list[int]  # [rows]
    states: Floats  # [rows, width]
    positions: list[int]  # [rows]
    sequences: list[int]  # [rows]
    outputs: list[int]  # batch rows whose proposal is wanted, ascending


@dataclass(frozen=True, slots=True)
class Proposals:
    """What a draft model says at its output rows, best first."""

    tokens: Ints  # [output rows, branches]
    confidences: Floats  # [output rows, branches], probabilities under the drafter's own softmax; NaN if not asked for
    states: Floats | None = None  # [output rows, width], before the head's output norm
