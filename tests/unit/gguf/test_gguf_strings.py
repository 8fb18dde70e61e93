"""Stepping over strings: the fast way and the plain way must agree on every mixture."""

from __future__ import annotations

import struct

from hypothesis import given, settings
from hypothesis import strategies as st

from eaglelocal.gguf.strings import walk_strings

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


@settings(max_examples=300, deadline=None)
@given(st.lists(PIECES, max_size=200), st.integers(0, 400), st.integers(0, 20), st.integers(1, 3))
def test_agrees_with_the_plain_walk(pieces: list[bytes], count: int, cut: int, times: int) -> None:
    packed = b"".join(struct.pack("<Q", len(piece)) + piece for piece in pieces * times)
    window = packed[: max(0, len(packed) - cut)]
    assert walk_strings(window, 0, count) == plain_walk(window, count)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=600), st.integers(0, 50))
def test_agrees_on_noise(window: bytes, count: int) -> None:
    assert walk_strings(window, 0, count) == plain_walk(window, count)


def test_agrees_across_segments() -> None:
    words = [b"w" * (number % 14) for number in range(120_000)]
    packed = b"".join(struct.pack("<Q", len(word)) + word for word in words)
    assert walk_strings(packed, 0, len(words)) == (len(packed), len(words))
    assert walk_strings(packed, 0, 70_001) == plain_walk(packed, 70_001)
