"""A reader at a position in a file, which checks every read against the bytes that remain.

Reads go through a buffer of a few megabytes instead of a memory map, because a file that shrinks
under a map kills the process. It handles bytes and lengths, not GGUF's structure; errors
give the position in the file, and the caller names what was being read.
"""

from __future__ import annotations

import struct
import sys
from typing import BinaryIO

from eaglelocal.errors import ModelFileError

_FIRST_WINDOW_BYTES = 1 << 18
_WINDOW_BYTES = 1 << 22
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_GET_AGAIN = "fetch or build the file again"


def malformed_error(name: str, problem: str, *, hint: str = _GET_AGAIN) -> ModelFileError:
    """Return the error for a file called `name`."""
    return ModelFileError(f"{name}: {problem}", hint=hint)


class HeaderCursor:
    """Sequential, bounded reads of little-endian values."""

    def __init__(self, file: BinaryIO, file_bytes: int, name: str, *, begin: int = 0) -> None:
        self._file = file
        self._file_bytes = file_bytes
        self.name = name
        self._base = begin
        self._window = b""
        self._at = 0
        self._fill(_FIRST_WINDOW_BYTES)

    @property
    def position(self) -> int:
        return self._base + self._at

    @property
    def remaining_bytes(self) -> int:
        return self._file_bytes - self.position

    def _fill(self, wanted_bytes: int) -> None:
        self._base += self._at
        self._at = 0
        self._file.seek(self._base)
        self._window = self._file.read(min(wanted_bytes, self._file_bytes - self._base))

    def take(self, num_bytes: int, what: str) -> bytes:
        """Return the next bytes. Raises ModelFileError, before reading, if the file cannot hold them."""
        self.require(num_bytes, what)
        if self._at + num_bytes > len(self._window):
            self._fill(max(num_bytes, _WINDOW_BYTES))
        end = self._at + num_bytes
        taken = self._window[self._at : end]
        if len(taken) != num_bytes:  # the file shrank after it was measured
            raise malformed_error(self.name, f"the file ends inside {what} at byte {self.position}")
        self._at = end
        return taken

    def require(self, num_bytes: int, what: str) -> None:
        if num_bytes > self.remaining_bytes:
            raise malformed_error(
                self.name, f"{what} at byte {self.position} takes {num_bytes} bytes, but {self.remaining_bytes} remain"
            )

    def skip(self, num_bytes: int, what: str) -> None:
        self.require(num_bytes, what)
        self._at += num_bytes
        if self._at > len(self._window):
            self._fill(_WINDOW_BYTES)

    def u32(self, what: str) -> int:
        value: int = _U32.unpack(self.take(4, what))[0]
        return value

    def u64(self, what: str) -> int:
        value: int = _U64.unpack(self.take(8, what))[0]
        return value

    def string(self, what: str, *, max_bytes: int) -> bytes:
        length = self.u64(f"the length of {what}")
        if length > max_bytes:
            raise malformed_error(self.name, f"{what} claims {length} bytes, more than the limit of {max_bytes}")
        return self.take(length, what)

    def skip_strings(self, count: int, what: str) -> None:
        self.require(8 * count, what)
        while count:
            self._at, walked = walk_strings(self._window, self._at, count)
            count -= walked
            if not walked:  # one string is longer than the window, or the window is used up
                self.skip(self.u64(f"a length in {what}"), what)
                count -= 1


# ---- string arrays: a fast way to skip the strings of an array in a GGUF, such as the tokens of a large vocabulary
#
# A string is a 64-bit length and its bytes, so each length is found only from the one before. But nearly all strings
# are short, so a length is a byte followed by seven zeros, and numpy finds all such places at once. They count only
# as far as each leads exactly to the next, which makes the guess a proof; where that breaks (long, empty or odd
# strings), strings are skipped one by one for a while. numpy is imported only for large arrays: that takes longer
# than skipping a small one.
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
