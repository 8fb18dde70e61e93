"""Move mapped weights into huge pages once a model is loaded.

Mapping a file takes no time, reading it takes seconds; but decodes of a few rows are faster from huge pages
(tests/measures/pages.py). A thread of the least priority copies the weights, one huge page after the other, and puts
each copy in the place of the mapped page; beside decodes that takes 2 % of the time. The addresses stay, and llama.cpp
does not notice. Linux only.
"""

from __future__ import annotations

import contextlib
import ctypes as C
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from eaglelocal.backend.native_step import get_function, load_native

MAPPINGS = "/proc/self/maps"
LEAST_PRIORITY = 19  # of a thread, on Linux

Range = tuple[int, int]  # addresses: first, end


@contextlib.contextmanager
def moving_weights(ranges: Sequence[Range]) -> Iterator[None]:
    """Move the weights in these ranges during the block; what has not been moved by its end stays mapped.

    Nobody may unmap them meanwhile.
    """
    stop = C.c_int32(0)
    thread = threading.Thread(target=_move_when_idle, args=(ranges, stop), name="weights", daemon=True)
    if ranges:
        thread.start()
    try:
        yield
    finally:
        stop.value = 1
        if ranges:
            thread.join()


def _move_when_idle(ranges: Sequence[Range], stop: C.c_int32) -> None:
    """Move weights with the least priority, which this thread keeps."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LEAST_PRIORITY)
    move_weights(ranges, stop)


def move_weights(ranges: Sequence[Range], stop: C.c_int32) -> None:
    """Move what lies in these ranges, until `stop` is set or the system refuses."""
    move = get_function(load_native(C.CDLL), "weights_move", [C.c_void_p, C.c_void_p, C.c_void_p], C.c_int32)
    for first, end in ranges:
        if move(first, end, C.addressof(stop)):
            return


def exclude_others(found: Sequence[Range], others: Sequence[Range]) -> list[Range]:
    """Return the ranges outside of all `others`. What is left of a range whose weights move lies inside of it."""
    return [(first, end) for first, end in found if all(end <= begin or first >= stop for begin, stop in others)]


def find_mappings(file: Path) -> list[Range]:
    """Return where this process has mapped a file; empty where the system has no list of that."""
    path = os.path.realpath(file)
    try:
        lines = Path(MAPPINGS).read_text(errors="surrogateescape").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:  # 7f10-7f20 r--s 00000000 08:01 131090   /path
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5] == path:
            first, end = fields[0].split("-")
            found.append((int(first, 16), int(end, 16)))
    return found
