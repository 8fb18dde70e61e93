"""The tiers of tests: a long table runs in part, and whole in the tier behind it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

import pytest


def some_of(
    values: Iterable[object], count: int = 1, *, rest: pytest.MarkDecorator = pytest.mark.full
) -> Sequence[object]:
    """Return the values for `parametrize`, all but `count` of them, spread evenly, with the mark of the later tier.

    A row of several arguments is a tuple, and so is a row of one that is a tuple.
    """
    rows = [row if isinstance(row, tuple) else (row,) for row in values]
    kept = set(islice(range(0, len(rows), max(len(rows) // count, 1)), count))
    return [pytest.param(*row, marks=() if at in kept else rest) for at, row in enumerate(rows)]
