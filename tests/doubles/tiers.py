"""The tiers of tests: a long table runs in part, and whole in the tier behind it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

import pytest
from _pytest.mark.structures import ParameterSet


def some_of(
    values: Iterable[object], count: int = 1, *, rest: pytest.MarkDecorator = pytest.mark.full
) -> Sequence[object]:
    """Return the values for `parametrize`, all but `count` of them, spread evenly, with the mark of the later tier.

    A row of several arguments is a tuple, and so is a row of one that is a tuple. A row may be of a `some_of` itself.
    """
    rows = [
        row if isinstance(row, ParameterSet) else pytest.param(*(row if isinstance(row, tuple) else (row,)))
        for row in values
    ]
    kept = set(islice(range(0, len(rows), max(len(rows) // count, 1)), count))
    return [row if at in kept else pytest.param(*row.values, marks=(*row.marks, rest)) for at, row in enumerate(rows)]
