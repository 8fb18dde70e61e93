"""numpy views of memory that llama.cpp owns: the one place where an address becomes an array.

llama.cpp hands out the same few addresses step after step, and making a view costs more than using it,
so views are kept by address. An address says nothing about validity: a view shows what the last call wrote.
"""

from __future__ import annotations

import ctypes as C
from typing import cast

import numpy as np

from eaglelocal.core.batch import Floats

MAX_KEPT = 256


class RowViews:
    """Views [width] of rows by address; copy what is kept beyond the next call into the context."""

    def __init__(self, width: int) -> None:
        self._type = C.c_float * width
        self._kept: dict[int, Floats] = {}

    def at(self, address: int) -> Floats:
        view = self._kept.get(address)
        if view is None:
            if len(self._kept) >= MAX_KEPT:  # buffers were moved: the old addresses will not come back
                self._kept.clear()
            view = cast(Floats, np.frombuffer(self._type.from_address(address), np.float32))  # type: ignore[call-overload]
            self._kept[address] = view
        return view


def floats_at(address: int, num_rows: int, width: int) -> Floats:
    """A view [num_rows, width] that is valid until the next call into the context; copy what is kept."""
    array = (C.c_float * (num_rows * width)).from_address(address)  # ctypes caches array types by length
    return cast(Floats, np.frombuffer(array, np.float32).reshape(num_rows, width))  # type: ignore[call-overload]
