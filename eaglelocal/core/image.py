"""What a target makes of an image: rows of its cache that stand for no tokens, and what stands for them in a prompt.

Prompts, caches and whatever compares them know token ids alone. A row of an image has no id, so each of its positions
has a stand-in: a negative number, made of what the image looks like. Equal images have equal ones, so that a cache that
holds an image is used again; no vocabulary has them, and nothing can draft or sample one.
"""

from __future__ import annotations

import hashlib
from array import array
from dataclasses import dataclass
from typing import Protocol

LEAST, SPAN = -(2**30), 2**30 - 1  # stand-ins are LEAST - SPAN + 1 to LEAST: beyond what a lookup means by its own


class ImageRows(Protocol):
    """An image, or a part of one, as it will lie in the cache."""

    @property
    def key(self) -> bytes:
        """Tells it from others."""

    @property
    def num_rows(self) -> int:
        """Cells that it takes."""

    @property
    def num_positions(self) -> int:
        """Positions that it takes; with M-RoPE fewer than rows."""


@dataclass(frozen=True, slots=True)
class PlacedImage:
    """Of a prompt: the positions first..end-1 are an image's."""

    first: int
    rows: ImageRows

    @property
    def end(self) -> int:
        return self.first + self.rows.num_positions

    @property
    def num_hidden(self) -> int:
        """Cells that it takes beyond one for each position."""
        return self.rows.num_rows - self.rows.num_positions


def stand_ins(rows: ImageRows) -> tuple[int, ...]:
    """One for each position."""
    numbers = array("I", hashlib.shake_256(rows.key).digest(4 * rows.num_positions))
    return tuple(LEAST - number % SPAN for number in numbers)
