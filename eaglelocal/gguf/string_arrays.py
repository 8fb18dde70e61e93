"""A fast way to skip the strings of an array in a GGUF, such as the tokens of a large vocabulary.

A string is a 64-bit length and its bytes, so each length is found only from the one before. But nearly all strings
are short, so a length is a byte followed by seven zeros, and numpy finds all such places at once. They count only as
far as each leads exactly to the next, which makes the guess a proof; where that breaks (long, empty or odd strings),
strings are skipped one by one for a while. numpy is imported only for large arrays: that takes longer than skipping a
small one.
"""

from __future__ import annotations

import struct
import sys

_LENGTH = struct.Struct("<Q")
_SEGMENT_BYTES = 1 << 18
_USUAL_BYTES = 32  # of a string with its length: few are longer, so little more than needed is searched
_FEW = 64  # fewer linked strings than this are not worth the vector work
_STEPS = 512
_MANY = 1 << 16  # strings for which numpy is imported


def walk_strings(window: bytes, start: int, count: int) -> tuple[int, int]:
    """Skip up to `count` strings that lie wholly in the window.

    Returns (position after the last one, how many).

    >>> walk_strings(b"\\2" + bytes(7) + b"ab" + b"\\9", 0, 5)
    (10, 1)
    """
    at, left = start, count
    leaps = left >= _MANY or "numpy" in sys.modules
    while left:
        linked = 0
        if leaps and left >= _FEW:
            at, linked = _leap(window, at, left)
            left -= linked
        if linked >= _FEW:
            continue
        at, walked = _step(window, at, min(left, _STEPS))
        left -= walked
        if not walked and not linked:
            break
    return at, count - left


def _leap(window: bytes, start: int, count: int) -> tuple[int, int]:
    import numpy as np

    num_bytes = min(_SEGMENT_BYTES, count * _USUAL_BYTES, len(window) - start)
    segment = np.frombuffer(window, np.uint8, num_bytes, start)
    zero = segment == 0
    num_empty = min(count, (len(zero) if zero.all() else int(zero.argmin())) // _LENGTH.size)
    if num_empty >= _FEW:  # consecutive lengths of 0
        return start + num_empty * _LENGTH.size, num_empty
    two = zero[:-1] & zero[1:]
    four = two[:-2] & two[2:]
    starts = np.flatnonzero((four[:-3] & four[3:])[1:])  # seven zeros after a byte
    if not len(starts) or starts[0]:
        return start, 0
    leads = starts[:-1] + 8 + segment[starts[:-1]] == starts[1:]
    linked = len(leads) if leads.all() else int(leads.argmin())
    linked = min(linked, count)
    return start + int(starts[linked]), linked


def _step(window: bytes, start: int, count: int) -> tuple[int, int]:
    at, end = start, len(window)
    for walked in range(count):
        following = at + 8 + _LENGTH.unpack_from(window, at)[0] if at + 8 <= end else end + 1
        if following > end:
            return at, walked
        at = following
    return at, count
