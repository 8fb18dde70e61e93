"""Images in prompts and caches: rows that have no token, and the stand-in ids that represent them.

Prompts, caches and everything that compares them know token ids only. A row of an image has no id, so each of its
positions has a stand-in: a negative number derived from the image's content. Equal images have equal stand-ins, so that
a cache that holds an image is reused; no vocabulary contains them, and nothing can draft or sample one.
"""

from __future__ import annotations

import hashlib
from array import array
from typing import Protocol

from eaglelocal.core.records import dataclass

LEAST, SPAN = -(2**30), 2**30 - 1  # stand-ins are LEAST - SPAN + 1 to LEAST: below those that a lookup uses


class ImageRows(Protocol):
    """An image, or a part of one, as it will lie in the cache."""

    @property
    def key(self) -> bytes:
        """The identity of the image: equal for equal images."""

    @property
    def num_rows(self) -> int:
        """The cells that it takes."""

    @property
    def num_positions(self) -> int:
        """The positions that it takes; with M-RoPE fewer than rows."""


@dataclass(frozen=True, slots=True)
class PlacedImage:
    """An image in a prompt, at positions first..end-1."""

    first: int
    rows: ImageRows

    @property
    def end(self) -> int:
        return self.first + self.rows.num_positions

    @property
    def num_hidden(self) -> int:
        """The cells that it takes beyond one per position."""
        return self.rows.num_rows - self.rows.num_positions


def placeholder_ids(rows: ImageRows) -> tuple[int, ...]:
    """Return the stand-in id of each position of the image."""
    numbers = array("I", hashlib.shake_256(rows.key).digest(4 * rows.num_positions))
    return tuple(LEAST - number % SPAN for number in numbers)
