"""A suffix automaton in plain Python, line by line as in the textbook, to compare the one in C with."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

NO_TOKEN = -(2**31)
MAX_MARKED = 8


class PlainAutomaton:
    """A suffix automaton. Arrays have one entry per state; state 0 is the empty text.

    Most states have one transition, which is kept in two arrays; a dictionary is made only for a second one.
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

    def __len__(self) -> int:
        return len(self.tokens)

    def step(self, state: int, token: int) -> int:
        """Return the state of a substring followed by `token`; 0 if that does not occur."""
        if self._token[state] == token:
            return self._target[state]
        ways = self._more.get(state)
        return ways.get(token, 0) if ways else 0

    def follow(self, state: int, length: int, token: int) -> tuple[int, int]:
        """Return state and length of the longest suffix of a substring plus `token` that occurs; 0 for none."""
        while not (found := self.step(state, token)):
            if state == 0:
                return 0, 0
            state = self.link[state]
            length = self.length[state]
        return found, length + 1

    def extend(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            self._append(token)

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
