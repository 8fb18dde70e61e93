"""Rows that go into one decode call, and what is asked back. Plain numpy, owned by Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Batch:
    """Token rows for a target or a draft model; one sequence a row (a chain) or several (a tree: engine/branches.py).

    An output row is one whose logits can be sampled; rows are addressed by their index in the batch.
    """

    tokens: list[int]  # [rows]
    positions: list[int]  # [rows]
    sequences: list[tuple[int, ...]]  # [rows]
    outputs: list[bool]  # [rows]

    def __len__(self) -> int:
        return len(self.tokens)


class Outputs(Protocol):
    """What one decode gave. Ask before the next one: llama.cpp then overwrites it."""

    def features(self, rows: list[int]) -> Floats | None:
        """Owned copies of the tapped states of these batch rows [rows, taps, n_embd]; None without taps."""


@dataclass(frozen=True, slots=True)
class PairBatch:
    """Rows for an EAGLE head: the pair (token at position + 1, state at position)."""

    tokens: list[int]  # [rows]
    states: Sequence[Floats]  # [rows] of [width]
    positions: list[int]  # [rows]
    sequences: list[int]  # [rows]
    outputs: list[int]  # batch rows whose proposal is wanted, ascending


@dataclass(frozen=True, slots=True)
class Proposals:
    """What a draft model says at its output rows, best first."""

    tokens: list[list[int]]  # [output rows][branches]
    confidences: list[list[float]]  # [output rows][branches], see backend/choices.py; NaN if not asked for
    states: list[Floats] = field(default_factory=list)  # [output rows] of [width], before the head's output norm
