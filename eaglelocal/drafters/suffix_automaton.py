"""Every substring of a growing text of tokens, in linear memory: a suffix automaton, built online.

Source: Blumer et al., The smallest automaton recognizing the subwords of a text, 1985. Knows token ids
and where they stood; knows nothing of slots, owners or drafts.

A state stands for all substrings that end at the same places; `link` leads to the longest suffix that
ends at more places. Appending a token costs O(1) amortised, and so does following a text with a Cursor.

    text  a b c a b          the longest suffix that occurred before: a b, which ended at 1 and went on with c
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

CONTEXT = 32  # tokens from before a cut that are read again, so that matches do not begin at nothing
NO_TOKEN = -(2**31)
MAX_MARKED = 8  # suffixes that an appended token marks; shorter ones may remember an older place and fewer of them


class SuffixAutomaton:
    """Arrays have one entry a state; state 0 is the empty text.

    Most states have one way out, which is kept in two arrays; a dictionary is made for the second one only.
    """

    def __init__(self) -> None:
        self.tokens = array("i")  # the text; a negative number is a break, which no other equals
        self.latest = array("i", [-1])  # where a substring of the state ended, the latest place that was marked
        self.count = array("i", [0])  # how often it was marked
        self.length = array("i", [0])  # of the longest substring
        self.link = array("i", [-1])
        self.last = 0  # state of the whole text
        self._token = array("i", [NO_TOKEN])  # the first way out: on this token
        self._target = array("i", [0])  # it leads there
        self._more: dict[int, dict[int, int]] = {}  # state -> token -> target, for all other ways
        self._num_breaks = 0
        self._piece_start = 0

    def __len__(self) -> int:
        return len(self.tokens)

    def step(self, state: int, token: int) -> int:
        """The state of a substring with `token` behind it; 0 where that does not occur."""
        if self._token[state] == token:
            return self._target[state]
        ways = self._more.get(state)
        return ways.get(token, 0) if ways else 0

    def follow(self, state: int, length: int, token: int) -> tuple[int, int]:
        """The longest suffix that occurs once `token` stands behind a substring; state and length, 0 for none."""
        while not (found := self.step(state, token)):
            if state == 0:
                return 0, 0
            state = self.link[state]
            length = self.length[state]
        return found, length + 1

    def extend(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            self._append(token)

    def break_off(self) -> None:
        """What is appended from here on does not follow what stands before."""
        if len(self.tokens) > self._piece_start:
            self._num_breaks += 1
            self._append(-self._num_breaks)
            self._piece_start = len(self.tokens)

    def tail(self, count: int) -> Sequence[int]:
        """The last tokens, `count` at most, since the last break."""
        return self.tokens[max(len(self.tokens) - count, self._piece_start) :]

    def _append(self, token: int) -> None:
        new, here = len(self.length), self.last
        end = len(self.tokens)
        self.tokens.append(token)
        self._add_state(end, 1, self.length[here] + 1)
        while here >= 0 and not self.step(here, token):
            self._lead(here, token, new)
            here = self.link[here]
        if here >= 0:
            self.link[new] = self._exactly(here, token)
        self.last = new
        self._mark(self.link[new], end)

    def _add_state(self, latest: int, count: int, length: int) -> None:
        self.latest.append(latest)
        self.count.append(count)
        self.length.append(length)
        self.link.append(0)
        self._token.append(NO_TOKEN)
        self._target.append(0)

    def _lead(self, state: int, token: int, target: int) -> None:
        if self._token[state] in (token, NO_TOKEN):
            self._token[state], self._target[state] = token, target
        else:
            self._more.setdefault(state, {})[token] = target

    def _exactly(self, here: int, token: int) -> int:
        """The state whose longest substring is that of `here` with `token` behind; split off if need be."""
        target = self.step(here, token)
        if self.length[target] == self.length[here] + 1:
            return target
        split = len(self.length)
        self._add_state(self.latest[target], self.count[target], self.length[here] + 1)
        self.link[split], self.link[target] = self.link[target], split
        self._token[split], self._target[split] = self._token[target], self._target[target]
        if target in self._more:
            self._more[split] = self._more[target].copy()
        while here >= 0 and self.step(here, token) == target:
            self._lead(here, token, split)
            here = self.link[here]
        return split

    def _mark(self, state: int, end: int) -> None:
        """Tell the longest suffixes that they occurred again. To tell all of them would not be O(1)."""
        for _ in range(MAX_MARKED):
            if state <= 0:
                return
            self.latest[state] = end
            self.count[state] += 1
            state = self.link[state]


class Cursor:
    """The longest suffix of a text that occurs in an automaton which does not grow meanwhile."""

    def __init__(self, source: SuffixAutomaton) -> None:
        self.source = source
        self._num_known = len(source)
        self.state = self.length = 0

    @property
    def is_outgrown(self) -> bool:
        """States may have been split and longer suffixes may occur now: a new cursor is needed."""
        return len(self.source) > self._num_known

    def walk(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            self.state, self.length = self.peek(token)

    def peek(self, token: int) -> tuple[int, int]:
        """State and length behind one more token, which is not taken."""
        return self.source.follow(self.state, self.length, token)


class Generations:
    """A text of which the newest part is indexed: at least the last `max_tokens`, at most twice as many.

    When the young automaton is full it becomes the old one, and what was old goes at once: nothing is indexed again.
    """

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self.young = SuffixAutomaton()
        self.old: SuffixAutomaton | None = None

    def __len__(self) -> int:
        return len(self.young) + (len(self.old) if self.old else 0)

    def extend(self, tokens: Sequence[int]) -> None:
        while len(tokens):
            if (room := self._max_tokens - len(self.young)) <= 0:
                self._turn()
                continue
            self.young.extend(tokens[:room])
            tokens = tokens[room:]

    def begin(self, context: Sequence[int]) -> None:
        """A new piece of text: behind a break, with the tokens before it so that matches reach back into them."""
        self.young.break_off()
        self.extend(context)

    def _turn(self) -> None:
        context = self.young.tail(min(CONTEXT, self._max_tokens // 2))
        self.old, self.young = self.young, SuffixAutomaton()
        self.young.extend(context)
