"""Find where a text occurred before: a cursor follows one text in the index of another, generations bound an index.

Knows token ids and their positions, not slots, owners or drafts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from eaglelocal.backend.suffix_automaton import SuffixAutomaton

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
    """

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self.young = SuffixAutomaton()
        self.old: SuffixAutomaton | None = None

    def __len__(self) -> int:
        return len(self.young) + (len(self.old) if self.old else 0)

    def contains(self, tokens: Sequence[int]) -> bool:
        """Return whether the tokens occur in one of the indexes in a row."""
        sources = [self.young] if self.old is None else [self.young, self.old]
        return any(source.follow(0, 0, tokens)[1] == len(tokens) for source in sources)

    def extend(self, tokens: Sequence[int]) -> None:
        while len(tokens):
            if (num_free := self._max_tokens - len(self.young)) <= 0:
                self._replace_old()
                continue
            self.young.extend(tokens[:num_free])
            tokens = tokens[num_free:]

    def begin(self, context: Sequence[int]) -> None:
        """Begin a new piece of text after a break, with the tokens before it, so that matches reach back into them."""
        self.young.add_break()
        self.extend(context)

    def _replace_old(self) -> None:
        context = self.young.tail(min(CONTEXT, self._max_tokens // 2))
        self.old, self.young = self.young, SuffixAutomaton()
        self.young.extend(context)
