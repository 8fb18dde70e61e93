"""numpy views of memory that llama.cpp owns: the one place where an address becomes an array."""

from __future__ import annotations

import ctypes as C
from typing import cast

import numpy as np

from eaglelocal.core.batch import Floats


def floats_at(address: int, num_rows: int, width: int) -> Floats:
    """A view [num_rows, width] that is valid until the next call into the context; copy what is kept."""
    array = (C.c_float * (num_rows * width)).from_address(address)  # ctypes caches array types by length
    return cast(Floats, np.frombuffer(array, np.float32).reshape(num_rows, width))  # type: ignore[call-overload]
