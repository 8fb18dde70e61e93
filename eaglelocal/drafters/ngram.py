"""Draft by prompt lookup: where the text's end has occurred before, propose what followed then.

Looks in the slot's own text and in the recent answers of the same owner, by suffix automata: O(1) amortised a token,
whatever the length of the match. Chains only. Works on token ids and owners, without a model; what its confidence is
worth is learned elsewhere (speculation/acceptance/acceptance_model.py).

Owners' texts never mix: an index is fed by one owner's requests. When a slot goes to another owner its index is
discarded, and what the new owner's prompt shares with the cache is indexed again. For one owner a cut costs O(1): the
index stays, stale end included, and goes on after a break.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from eaglelocal.backend.suffix_automaton import SuffixAutomaton
from eaglelocal.core.batch import NO_EXTRA_LEVELS, ExtraLevels
from eaglelocal.drafters.drafter import NOTHING, Committed, Continuation, DraftTraits, Node, Swapped
from eaglelocal.drafters.text_index import CONTEXT, Generations, SuffixCursor
from eaglelocal.errors import EngineError

MIN_MATCH = 2  # tokens; after a single one the proposal is right one time in four, after two more than one in three
LONG_MATCH = 16  # right nine times in ten; longer matches count as equal, and the newest text has most to follow
MAX_REREAD = 4096  # tokens of a shared prompt that are indexed again for another owner (under 1 ms)
POOL_TOKENS = 8192  # newest tokens of an owner's answers that are found for sure
MAX_OWNERS = 16  # whose answers are kept; the one that answered longest ago goes first
PRIOR_WEIGHT = 3  # imagined occurrences, by which the length of a match counts; see confidence


@dataclass(slots=True)
class Occurrence:
    """An earlier occurrence that is followed token by token.

    state       of the match and the tokens drafted after it, in `source`; 0 where that has not occurred
    end         where the followed occurrence ends in `source`
    position    of the last token, in the target's sequence
    unwritten   root and drafted tokens, where `source` ends with this very text: an occurrence may overlap with them
    """

    source: SuffixAutomaton
    state: int
    length: int
    position: int
    token: int
    unwritten: list[int] | None
    end: int = field(init=False)

    def __post_init__(self) -> None:
        self.end = self.source.latest(self.state)

    @property
    def next_token(self) -> int | None:
        """The token that followed; None at a break, and at the end of a text that is not this one."""
        beyond = self.end + 1 - len(self.source)
        if beyond < 0:
            token = self.source.tokens[self.end + 1]
            return token if token >= 0 else None
        return self.unwritten[beyond] if self.unwritten is not None else None

    def grow(self, depth: int) -> Continuation:
        """Append the tokens that followed, at most `depth`, and return them."""
        tokens: list[int] = []
        while len(tokens) < depth and (token := self.next_token) is not None:
            tokens.append(token)
            self.token, self.end = token, self.end + 1
            if self.unwritten is not None:
                self.unwritten.append(token)
        self.state, counts = self.source.counts(self.state, tokens)
        lengths = range(self.length, self.length + len(tokens))
        self.length, self.position = self.length + len(tokens), self.position + len(tokens)
        return Continuation(tokens, list(map(confidence, lengths, counts, counts[1:])))


def confidence(length: int, num_seen: int, num_agreed: int) -> float:
    """Return how sure a proposal is, in (0, 1): agreement of the occurrences, with the length of the match as a prior.

    The followed occurrence agrees by definition and does not count; of the `num_seen` - 1 others, `num_agreed` - 1 went
    on with the same token. Three more are imagined, of which length / (length + 3) agree: a long match that was seen
    once is worth as much as a short one that always went on alike.

        one token in five agreed behind 2 tokens: 0.17    seen once, 2 tokens: 0.40    seen once, 30 tokens: 0.91
    """
    num_seen = max(num_seen, 1)
    num_agreed = min(max(num_agreed, 1), num_seen)
    imagined = PRIOR_WEIGHT * length / (length + PRIOR_WEIGHT)
    return (num_agreed - 1 + imagined) / (num_seen - 1 + PRIOR_WEIGHT)


@dataclass(slots=True)
class NgramSlot:
    """The text of a slot, its index, and how far the text's end is found in the other indexes of its owner."""

    owner: str = ""
    text: array[int] = field(default_factory=lambda: array("i"))  # committed, without a hole
    start: int = 0  # position of its first token
    num_prompt: int = 0
    num_settled: int = 0  # tokens before this position are in the owner's pool, or are not of its answer
    own: Generations | None = None  # None: to be built from the text
    num_read: int = 0  # tokens before this position are in the index, and the cursors have walked them
    cursors: list[SuffixCursor] = field(default_factory=list)
    chain: Occurrence | None = None

    @property
    def end(self) -> int:
        """Position after the text."""
        return self.start + len(self.text)

    def cut(self, position: int, start: int) -> None:
        """Keep the text before `position`; if that is nothing, it begins at `start`."""
        del self.text[max(position - self.start, 0) :]
        self.start = self.start if self.text else start
        self.num_settled = self.num_read = self.end
        self.cursors, self.chain = [], None
        if self.own is not None:
            self.own.begin(self.text[-CONTEXT:])

    def take_answer(self) -> array[int]:
        """Return the tokens that were answered since the last call."""
        first = max(self.num_prompt, self.num_settled) - self.start
        self.num_settled = self.end
        return self.text[max(first, 0) :]

    def index(self, max_tokens: int) -> Generations:
        """Return the index of the whole text.

        The text is read when this is first called: a request that looks nothing up reads none.
        """
        if self.own is None:
            self.own = Generations(max_tokens)
            self.own.extend(self.text[max(self.num_read - self.start - MAX_REREAD, 0) :])
            self.cursors = []
        elif self.num_read < self.end:
            new = self.text[self.num_read - self.start :]
            for cursor in self.cursors:
                cursor.walk(new)
            self.own.extend(new)
        self.num_read = self.end
        return self.own

    def watch(self, sources: list[SuffixAutomaton]) -> None:
        """Follow the text in exactly these sources; in one that is new or has grown, from the last tokens on."""
        known = {cursor.source: cursor for cursor in self.cursors if not cursor.is_outgrown}
        if list(known) == sources:
            return
        self.cursors = [known[s] if s in known else SuffixCursor(s) for s in sources]
        for cursor in self.cursors:
            if cursor.source not in known:
                cursor.walk(self.text[-CONTEXT:])


class Ngram:
    """A drafter (drafters.drafter.Drafter) without a model.

    max_tokens  of a slot's text: the context. An index holds twice as many at most

    A slot for which `begin` was not called belongs to "", and all its text counts as an answer.
    """

    traits = DraftTraits(name="ngram")
    native_s = 0.0

    def __init__(self, max_tokens: int, *, pool_tokens: int = POOL_TOKENS, max_owners: int = MAX_OWNERS) -> None:
        self._max_tokens, self._pool_tokens, self._max_owners = max_tokens, pool_tokens, max_owners
        self._slots: defaultdict[int, NgramSlot] = defaultdict(NgramSlot)
        self._pools: dict[str, Generations] = {}  # by owner; the one that answered last stands last

    @property
    def num_indexed(self) -> int:
        """Number of tokens in all indexes."""
        return sum(len(s.own) for s in self._slots.values() if s.own) + sum(map(len, self._pools.values()))

    def begin(self, slot: int, owner: str, num_prompt: int) -> None:
        """Start a request of `owner` in the slot; its answer begins after `num_prompt` tokens.

        To be called before the first rows of the request, before or after the `rollback` of what it does not share.
        """
        self.end(slot)
        state = self._slots[slot]
        if owner != state.owner:
            state.owner, state.own, state.cursors, state.chain = owner, None, [], None
            state.num_read = state.end  # another owner's text is never read
        state.num_prompt = num_prompt

    def end(self, slot: int) -> None:
        """Let the owner's other requests draft from the slot's answer, which has ended. A second call does nothing."""
        state = self._slots[slot]
        if len(answer := state.take_answer()) > MIN_MATCH:
            self._pool(state.owner).begin(answer)

    def _pool(self, owner: str) -> Generations:
        self._pools[owner] = pool = self._pools.pop(owner, None) or Generations(self._pool_tokens)
        if len(self._pools) > self._max_owners:
            del self._pools[next(iter(self._pools))]
        return pool

    def draft(
        self, nodes: Sequence[Node], depth: int = 1, extra_levels: ExtraLevels = NO_EXTRA_LEVELS
    ) -> list[Continuation]:
        return [self._expand(node, depth) for node in nodes]

    def _expand(self, node: Node, depth: int) -> Continuation:
        state = self._slots[node.slot]
        if node.is_root:
            check_hole(node.slot, state, node.position, is_hole=node.position != state.end)
            state.chain = self._match(state, node)
        chain = state.chain
        if chain is None or (chain.token, chain.position) != (node.token, node.position):
            return NOTHING  # the node is another drafter's
        return chain.grow(depth)

    def _match(self, state: NgramSlot, root: Node) -> Occurrence | None:
        """Return the longest match of the text and the root that has a continuation; the own text first where equal."""
        young = self._look(state)
        end = young.follow(young.last, len(young), (root.token,))
        found = [Occurrence(young, *end, root.position, root.token, [root.token])]
        for cursor in state.cursors:
            found.append(Occurrence(cursor.source, *cursor.peek(root.token), root.position, root.token, None))
        going_on = [c for c in found if c.length >= MIN_MATCH and c.next_token is not None]
        return max(going_on, key=lambda chain: min(chain.length, LONG_MATCH), default=None)

    def _look(self, state: NgramSlot) -> SuffixAutomaton:
        """Return the growing index of the slot's own text; set the cursors to all others that it may draft from."""
        own, pool = state.index(self._max_tokens), self._pools.get(state.owner)
        others = [own.old, pool.young, pool.old] if pool else [own.old]
        state.watch([source for source in others if source is not None])
        return own.young

    def commit(self, committed: Sequence[Committed]) -> None:
        for rows in committed:
            state = self._slots[rows.slot]
            check_hole(rows.slot, state, rows.first_position, is_hole=rows.first_position > state.end)
            self._commit(state, rows)

    def buffer(self, committed: Sequence[Committed]) -> None:
        """Commit the rows as `commit` does, which costs no more asleep; after a hole the text starts over."""
        for rows in committed:
            state = self._slots[rows.slot]
            if rows.first_position > state.end:
                self.end(rows.slot)
                state.cut(0, rows.first_position)
            self._commit(state, rows)

    def skip(self, image: Committed) -> None:
        """Commit the image's negative tokens, which are breaks, but match where the same image occurs again."""
        self.buffer([image])

    def _commit(self, state: NgramSlot, rows: Committed) -> None:
        state.text.extend(rows.tokens[state.end - rows.first_position :])
        state.chain = None

    def rollback(self, slot: int, position: int) -> None:
        self.end(slot)
        state = self._slots[slot]
        if position == 0:
            state.own = None
        if position < state.end:
            if position and state.num_read < state.end:
                state.index(self._max_tokens)  # what is cut off may well be generated again
            state.cut(position, position)

    def copy_slot(self, source: int, target: int, position: int) -> None:
        """Copy the tokens alone, which are the target's own prompt; indexed again, so that nothing else comes along."""
        theirs = self._slots[source]
        self._begin_with(target, theirs.text[: max(position - theirs.start, 0)], theirs.start, position)

    def swapped_bytes(self, slot: int) -> int:
        return 0

    def swap_out(self, slot: int) -> Swapped[None]:
        """Return no state: the tokens are all there is to know."""
        return Swapped(None)

    def swap_in(self, slot: int, swapped: Swapped[None], tokens: Sequence[int]) -> None:
        self._begin_with(slot, array("i", tokens), 0, len(tokens))

    def _begin_with(self, slot: int, text: array[int], start: int, position: int) -> None:
        self.end(slot)
        state = self._slots[slot]
        state.text, state.start, state.own = text, start, None
        state.cut(position, position)

    def close(self) -> None:
        self._slots.clear()
        self._pools.clear()


def check_hole(slot: int, state: NgramSlot, position: int, *, is_hole: bool) -> None:
    if is_hole:
        raise EngineError(f"hole in the text of slot {slot} at position {state.end}: rows go on at {position}")
