"""Rows that go into one decode call, and what is asked back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]  # cells of a sequence, in main memory
State = bytes  # float32 [width] of an EAGLE head, owned; drafters keep states and hand them on, no more


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

    def features(self, rows: list[int]) -> Features | None:
        """The tapped states of these batch rows; None without taps."""


class Features(Protocol):
    """Tapped states of some rows of one decode: for the head to encode before the next one, which voids them."""

    def __len__(self) -> int: ...

    def after(self, num_rows: int) -> Features:
        """All but the first rows."""

    def copied(self) -> Floats:
        """[rows, taps, n_embd], owned, for whoever keeps them longer."""


@dataclass(frozen=True, slots=True)
class PairBatch:
    """Rows for an EAGLE head: the pair (token at position + 1, state at position)."""

    tokens: list[int]  # [rows]
    states: list[State]  # [rows]
    positions: list[int]  # [rows]
    sequences: list[int]  # [rows]
    outputs: list[int]  # batch rows whose proposal is wanted, ascending


class FeatureRows(NamedTuple):
    """Rows of a text that a head is shown: their tapped states, of which there are as many, from a position on."""

    sequence: int
    position: int
    features: Features | Floats


class Roots(NamedTuple):
    """Where blocks begin: last sampled tokens, one a sequence."""

    tokens: list[int]
    positions: list[int]
    sequences: list[int]


class Further(NamedTuple):
    """Levels of a draft beyond those that are asked for, as long as every token was so sure, and none an end."""

    num_levels: int = 0
    confidence: float = 1.0


NO_FURTHER = Further()


@dataclass(frozen=True, slots=True)
class Proposals:
    """What a draft model says at its output rows, best first; of a draft of several levels, level after level."""

    tokens: list[list[int]]  # [levels x output rows][branches]
    confidences: list[list[float]]  # [levels x output rows][branches], see backend/choices.py; NaN if not asked for
    states: list[State] = field(default_factory=list)  # [output rows] behind the last level, as the next rows take them
