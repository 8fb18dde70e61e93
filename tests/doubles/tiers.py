"""The tiers of tests: a long table runs in part in the plain run, and whole in the full one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

import pytest


def some_of(values: Iterable[object], count: int = 1) -> Sequence[object]:
    """Return the values for `parametrize`: `count` of them, spread evenly, are for both runs, the others for the full.

    A row of several arguments is a tuple.
    """
    rows = list(values)
    kept = set(islice(range(0, len(rows), max(len(rows) // count, 1)), count))
    return [row if at in kept else _only_full(row) for at, row in enumerate(rows)]


def _only_full(row: object) -> object:
    arguments = row if isinstance(row, tuple) else (row,)
    return pytest.param(*arguments, marks=pytest.mark.full)
