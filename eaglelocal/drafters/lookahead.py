"""Draft from the target's own guesses: the tokens that it would have chosen after drafted tokens that it rejected.

A refused draft was decoded all the same, and its rows show which token the target finds likeliest after each drafted
one. Jacobi decoding makes these guesses its next draft, and lookahead decoding (arXiv 2402.02057) keeps them as n-grams
for later. This drafter does both, by chains: it follows kept n-grams, of the last two tokens or of the last one, and
where there is none, the guess for the same position. Refused drafts, its own or another drafter's, give new n-grams, so
that no rows are needed beside drafts. So do answers, which give it something to begin with.

Owners' texts never mix: an owner's n-grams come from its own answers and their drafts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import field
from typing import TypeVar

from eaglelocal.core.batch import NO_EXTRA_LEVELS, ExtraLevels
from eaglelocal.core.records import dataclass
from eaglelocal.drafters.drafter import NOTHING, Committed, Continuation, DraftTraits, Lookup, Node

MAX_GRAMS = 8192  # of an owner, by two tokens and by one; the oldest go first
MAX_OWNERS = 16  # whose n-grams are kept; the least recent goes first
# Confidences tell the three sources apart: their acceptance is learned (acceptance_table.py), whether or not they are
# sent. So they begin low: guesses that are right are soon sent, and those that never are take few rows.
PAIR, SINGLE, PLACE = 0.06, 0.035, 0.02
KeyT = TypeVar("KeyT")
UNKNOWN = -1  # stands for the token before a text's first one


class GramPool:
    """The n-grams of one owner: the newest token after two tokens, and after one."""

    def __init__(self) -> None:
        self._pairs: dict[tuple[int, int], int] = {}
        self._singles: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._pairs)

    def add(self, before: int, token: int, guess: int) -> None:
        replace_newest(self._pairs, (before, token), guess)
        replace_newest(self._singles, token, guess)

    def find(self, before: int, token: int) -> tuple[int, float] | None:
        """Return the guess after these tokens, and its confidence; None if none is kept."""
        guess = self._pairs.get((before, token))
        if guess is not None:
            return guess, PAIR
        guess = self._singles.get(token)
        return None if guess is None else (guess, SINGLE)


def replace_newest(grams: dict[KeyT, int], key: KeyT, guess: int) -> None:
    """Store a guess as the newest one, and drop the oldest if there are too many."""
    grams.pop(key, None)
    grams[key] = guess
    if len(grams) > MAX_GRAMS:
        del grams[next(iter(grams))]


@dataclass(slots=True)
class LookaheadSlot:
    """The end of a slot's text, what is drafted after it, and the guesses for the positions that follow.

    newest      the last two committed tokens
    end         position after them: that of the root
    num_prompt  tokens of the prompt, from which nothing is learned
    guesses     by position; they stem from refused drafts
    drafted     root and drafted tokens, after the last committed one
    """

    owner: str = ""
    newest: tuple[int, int] = (UNKNOWN, UNKNOWN)
    end: int = 0
    num_prompt: int = 0
    guesses: dict[int, int] = field(default_factory=dict)
    drafted: list[int] = field(default_factory=list)

    def forget(self, position: int) -> None:
        """Restart at this position, after an unknown token."""
        self.newest, self.end = (UNKNOWN, UNKNOWN), position
        self.guesses.clear()
        self.drafted.clear()


class Lookahead(Lookup):
    """A drafter without a model, of n-grams that the target guessed."""

    traits = DraftTraits(name="lookahead", reads_refused=True)

    def __init__(self) -> None:
        self._slots: defaultdict[int, LookaheadSlot] = defaultdict(LookaheadSlot)
        self._pools: dict[str, GramPool] = {}  # by owner; the most recently updated one last

    def begin(self, slot: int, owner: str, num_prompt: int) -> None:
        state = self._slots[slot]
        state.owner, state.num_prompt = owner, num_prompt
        state.forget(state.end)

    def estimate(self, root: Node) -> float:
        state = self._slots[root.slot]
        pool = self._pools.get(state.owner)
        found = pool.find(state.newest[1], root.token) if pool is not None else None
        if found is not None:
            return found[1]
        return PLACE if root.position + 1 in state.guesses else 0.0

    def draft(
        self, nodes: Sequence[Node], depth: int = 1, extra_levels: ExtraLevels = NO_EXTRA_LEVELS
    ) -> list[Continuation]:
        return [self._draft_after(node, depth) for node in nodes]

    def _draft_after(self, node: Node, depth: int) -> Continuation:
        state = self._slots[node.slot]
        if node.is_root:
            state.drafted = [state.newest[1] if node.position == state.end else UNKNOWN, node.token]
        elif state.drafted[-1:] != [node.token] or state.end + len(state.drafted) - 2 != node.position:
            return NOTHING  # another drafter proposed the node
        pool, first = self._pools.get(state.owner), len(state.drafted)
        confidences: list[float] = []
        for position in range(node.position + 1, node.position + 1 + depth):
            found = pool.find(*state.drafted[-2:]) if pool is not None else None
            if found is None and position in state.guesses:
                found = state.guesses[position], PLACE
            if found is None:
                break
            state.drafted.append(found[0])
            confidences.append(found[1])
        return Continuation(state.drafted[first:], confidences) if confidences else NOTHING

    def commit(self, committed: Sequence[Committed]) -> None:
        for rows in committed:
            state = self._slots[rows.slot]
            if rows.first_position != state.end:
                state.forget(rows.first_position)
            tokens = (*state.newest, *rows.tokens)
            if rows.first_position >= state.num_prompt:
                self._learn(state, tokens, rows.refused)
            state.newest, state.end = (tokens[-2], tokens[-1]), rows.first_position + len(rows.tokens)
            state.drafted.clear()

    def _learn(self, state: LookaheadSlot, tokens: Sequence[int], refused: Sequence[tuple[int, int]]) -> None:
        """Keep the n-grams of an answer's tokens, the first two of which are known, and the guesses after them.

        refused  see DraftTraits.reads_refused
        """
        self._pools[state.owner] = pool = self._pools.pop(state.owner, None) or GramPool()
        if len(self._pools) > MAX_OWNERS:
            del self._pools[next(iter(self._pools))]
        for before, token, following in zip(tokens, tokens[1:], tokens[2:], strict=False):
            pool.add(before, token, following)
        end = state.end + len(tokens) - 2
        state.guesses = {position: guess for position, guess in state.guesses.items() if position > end}
        before = tokens[-1]
        for position, (token, guess) in enumerate(refused, start=end + 1):
            pool.add(before, token, guess)
            state.guesses[position] = guess
            before = token

    def skip(self, image: Committed) -> None:
        self._slots[image.slot].forget(image.first_position + len(image.tokens))

    def rollback(self, slot: int, position: int) -> None:
        state = self._slots[slot]
        if position != state.end:
            state.forget(position)

    def copy_slot(self, source: int, target: int, position: int) -> None:
        """Copy nothing: the n-grams belong to owners, and the next rows bring the last token."""
        self._slots[target].forget(position)

    def swap_in(self, slot: int, swapped: None, tokens: Sequence[int]) -> None:
        self._slots[slot].forget(len(tokens))

    def close(self) -> None:
        self._slots.clear()
        self._pools.clear()
