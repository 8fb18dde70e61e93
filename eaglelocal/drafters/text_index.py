"""Find where a text occurred before: a cursor follows one text in the index of another, generations bound an index.

Knows token ids and their positions, not slots, owners or drafts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from eaglelocal.backend.suffix_automaton import SuffixAutomaton

MATCH_LENGTHS = (2, 4, 8)  # tokens of runs whose occurrence is known at once
CONTEXT = 32  # tokens before a cut that are indexed again, so that matches can begin in them


class SuffixCursor:
    """The longest suffix of a text that occurs in an automaton, as long as the automaton does not grow."""

    def __init__(self, source: SuffixAutomaton) -> None:
        self.source = source
        self._num_known = len(source)
        self.state = self.length = 0

    @property
    def is_outgrown(self) -> bool:
        """True if the automaton has grown: longer suffixes may occur now, and a new cursor is needed."""
        return len(self.source) > self._num_known

    def walk(self, tokens: Iterable[int]) -> None:
        self.state, self.length = self.source.follow(self.state, self.length, tokens)

    def peek(self, token: int) -> tuple[int, int]:
        """Return state and length as they would be after one more token."""
        return self.source.follow(self.state, self.length, (token,))


class Generations:
    """An index of the newest part of a text: at least the last `max_tokens`, at most twice as many.

    When the young automaton is full, it replaces the old one. Nothing is indexed again.

    Hashes of all runs of MATCH_LENGTHS tokens are kept in sets: a run that is in no set need not be looked up in an
    automaton, which would be a cold call into native code at every step.
    """

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self.young = SuffixAutomaton()
        self.old: SuffixAutomaton | None = None
        self._young_runs: set[int] = set()
        self._old_runs: set[int] = set()

    def __len__(self) -> int:
        return len(self.young) + (len(self.old) if self.old else 0)

    def contains(self, tokens: Sequence[int]) -> bool:
        """Return whether the tokens occur consecutively in one of the indexes."""
        sources = [self.young] if self.old is None else [self.young, self.old]
        return any(source.follow(0, 0, tokens)[1] == len(tokens) for source in sources)

    def extend(self, tokens: Sequence[int]) -> None:
        while len(tokens):
            if (num_free := self._max_tokens - len(self.young)) <= 0:
                self._replace_old()
                continue
            part, tokens = tokens[:num_free], tokens[num_free:]
            text = [*self.young.tail(MATCH_LENGTHS[-1] - 1), *part]
            for length in MATCH_LENGTHS:
                self._young_runs.update(map(hash, zip(*(text[first:] for first in range(length)), strict=False)))
            self.young.extend(part)

    def may_contain(self, key: int) -> bool:
        """Return False if the text has no run of MATCH_LENGTHS tokens with this hash, of a tuple."""
        return key in self._young_runs or key in self._old_runs

    def begin(self, context: Sequence[int]) -> None:
        """Begin a new piece of text after a break, with the tokens before it, so that matches reach back into them."""
        self.young.add_break()
        self.extend(context)

    def _replace_old(self) -> None:
        context = self.young.tail(min(CONTEXT, self._max_tokens // 2))
        self.old, self.young = self.young, SuffixAutomaton()
        self._old_runs, self._young_runs = self._young_runs, set()
        self.extend(context)
