"""Stepping over strings: the fast way and the plain way must agree on every mixture."""

from __future__ import annotations

import struct
import subprocess
import sys

import numpy as np
import pytest
from doubles.property_tests import examples
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.gguf.cursor import _MANY, walk_strings

PIECES = st.one_of(
    st.binary(max_size=12),
    st.just(b""),
    st.just(bytes(9)),
    st.binary(min_size=250, max_size=300),
    st.just(b"\3" + bytes(7)),
)


def plain_walk(window: bytes, count: int) -> tuple[int, int]:
    at = 0
    for walked in range(count):
        if at + 8 > len(window):
            return at, walked
        length = struct.unpack_from("<Q", window, at)[0]
        if at + 8 + length > len(window):
            return at, walked
        at += 8 + length
    return at, count


@examples(300)
@given(st.lists(PIECES, max_size=200), st.integers(0, 400), st.integers(0, 20), st.integers(1, 3))
def test_agrees_with_the_plain_walk(pieces: list[bytes], count: int, cut: int, times: int) -> None:
    packed = b"".join(struct.pack("<Q", len(piece)) + piece for piece in pieces * times)
    window = packed[: max(0, len(packed) - cut)]
    assert walk_strings(window, 0, count) == plain_walk(window, count)


@examples(200)
@given(st.binary(max_size=600), st.integers(0, 50))
def test_agrees_on_noise(window: bytes, count: int) -> None:
    assert walk_strings(window, 0, count) == plain_walk(window, count)


@pytest.mark.parametrize("word", [b"", b"ab", b"\0\0"])
def test_few_strings_look_at_few_bytes(word: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much lies behind them: a header may have 60 000 short arrays."""
    looked_at: list[int] = []
    plain = np.frombuffer

    def counted(window: bytes, kind: type, count: int, offset: int) -> np.ndarray:
        looked_at.append(count)
        return plain(window, kind, count, offset)

    monkeypatch.setattr(np, "frombuffer", counted)
    window = (struct.pack("<Q", len(word)) + word) * 100_000
    for count in (1, 20, 100, 1000):
        assert walk_strings(window, 0, count) == (count * (8 + len(word)), count)
    assert sum(looked_at) <= 100_000 < len(window)


@pytest.mark.parametrize(("count", "is_imported"), [(_MANY - 1, False), (_MANY, True)])
def test_numpy_is_imported_for_large_arrays_only(count: int, is_imported: bool) -> None:
    code = (
        "import sys; from eaglelocal.gguf.cursor import walk_strings\n"
        f"window = (b'\\2' + bytes(7) + b'ab') * {count}\n"
        f"assert walk_strings(window, 0, {count}) == (len(window), {count})\n"
        "print('numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == str(is_imported)


def test_empty_strings_are_stepped_over_together() -> None:
    window = bytes(8 * 100_000) + struct.pack("<Q", 3) + b"end"
    assert walk_strings(window, 0, 100_001) == (len(window), 100_001)
    assert walk_strings(window, 0, 99_999) == (8 * 99_999, 99_999)


def test_agrees_across_segments() -> None:
    words = [b"w" * (number % 14) for number in range(120_000)]
    packed = b"".join(struct.pack("<Q", len(word)) + word for word in words)
    assert walk_strings(packed, 0, len(words)) == (len(packed), len(words))
    assert walk_strings(packed, 0, 70_001) == plain_walk(packed, 70_001)
