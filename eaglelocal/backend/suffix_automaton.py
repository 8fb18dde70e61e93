"""A suffix automaton: an index of all substrings of a growing text of tokens, in linear memory, built online.

Source: Blumer et al., The smallest automaton recognizing the subwords of a text, 1985. Knows token ids
and their positions, not slots, owners or drafts. Its states are kept in native code (native/suffix_automaton.c).

A state stands for all substrings that end at the same places; its link leads to the longest suffix that
ends at more places. Appending a token costs O(1) amortized, and so does following a text with a Cursor.

    text  a b c a b          the longest suffix that occurred before: a b, which ended at 1, followed by c
"""

from __future__ import annotations

import ctypes as C
import functools
import weakref
from array import array
from collections.abc import Iterable, Sequence

from eaglelocal.backend.native_step import get_function, load_native


class AutomatonLibrary:
    """The native functions.

    They keep the GIL, because a step's tokens take a microsecond and the longest prompt some 20 ms.
    """

    def __init__(self) -> None:
        library, at, i32 = load_native(C.PyDLL), C.c_void_p, C.c_int32
        self.new = get_function(library, "automaton_new", [], at)
        self.free = get_function(library, "automaton_free", [at], None)
        self.extend = get_function(library, "automaton_extend", [at, i32, at], i32)
        self.step = get_function(library, "automaton_step", [at, i32, i32], i32)
        self.follow = get_function(library, "automaton_follow", [at, i32, at, at, at], None)
        self.counts = get_function(library, "automaton_counts", [at, i32, i32, at, at], i32)
        self.latest = get_function(library, "automaton_latest", [at, i32], i32)
        self.size = get_function(library, "automaton_size", [at], C.c_int64)


native = functools.cache(AutomatonLibrary)


class SuffixAutomaton:
    """The index of one text. State 0 is the empty text. Raises MemoryError; it must not be used afterwards."""

    def __init__(self) -> None:
        self.tokens = array("i")  # the text; each break is a unique negative number
        self.last = 0  # state of the whole text
        self._native = native()
        self._address = self._native.new()
        if not self._address:
            raise MemoryError("no memory for an index of the text")
        weakref.finalize(self, self._native.free, self._address).atexit = False  # threads may still use it then
        self._num_breaks = 0
        self._piece_start = 0

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def num_bytes(self) -> int:
        return len(self.tokens) * self.tokens.itemsize + int(self._native.size(self._address))

    def latest(self, state: int) -> int:
        """Return the latest marked position where a substring of the state ended."""
        return int(self._native.latest(self._address, state))

    def step(self, state: int, token: int) -> int:
        """Return the state of the substring followed by `token`; 0 if that does not occur."""
        return int(self._native.step(self._address, state, token))

    def follow(self, state: int, length: int, tokens: Iterable[int]) -> tuple[int, int]:
        """Extend a substring by `tokens`; return the longest suffix that occurs, as state and length (0: none)."""
        text, at = array("i", tokens), array("i", [state, length])
        first, _ = at.buffer_info()
        self._native.follow(self._address, len(text), text.buffer_info()[0], first, first + at.itemsize)
        return at[0], at[1]

    def counts(self, state: int, tokens: Sequence[int]) -> tuple[int, list[int]]:
        """Return the state of a substring followed by `tokens`, and how often it was marked after 0, 1, .. all of them.

        Shorter suffixes may have been marked less often than they occurred.
        """
        text, counts = array("i", tokens), array("i", bytes(4 * (len(tokens) + 1)))
        at = text.buffer_info()[0], counts.buffer_info()[0]
        return int(self._native.counts(self._address, state, len(text), *at)), counts.tolist()

    def extend(self, tokens: Iterable[int]) -> None:
        text = array("i", tokens)
        last = self._native.extend(self._address, len(text), text.buffer_info()[0])
        if last < 0:
            raise MemoryError("no memory for an index of the text")
        self.tokens += text
        self.last = last

    def add_break(self) -> None:
        """Separate the following tokens from those before."""
        if len(self.tokens) > self._piece_start:
            self._num_breaks += 1
            self.extend([-self._num_breaks])
            self._piece_start = len(self.tokens)

    def tail(self, count: int) -> Sequence[int]:
        """Return the last tokens, `count` at most, since the last break."""
        return self.tokens[max(len(self.tokens) - count, self._piece_start) :]
