"""Draft by prompt lookup: where the text's end has occurred before, propose what followed then.

Searches the slot's own text and the recent answers of the same owner, by suffix automata: amortized O(1) per token,
whatever the length of the match. Drafts chains, from token ids and owners alone. How often it is right is learned in
speculation/acceptance/acceptance_model.py.

Owners' texts never mix: an index is fed by one owner's requests. When a slot goes to another owner, its index is
discarded, and the part of the cache that the new prompt shares is indexed again. For the same owner a cut costs O(1):
the index stays, stale end included, and continues after a break.

With a memory, the owner's prompts can be found too, and both after a restart.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import field

from eaglelocal.backend.suffix_automaton import SuffixAutomaton
from eaglelocal.core.batch import NO_EXTRA_LEVELS, ExtraLevels
from eaglelocal.core.records import dataclass
from eaglelocal.drafters.drafter import NOTHING, PRIVATE, Committed, Continuation, DraftTraits, Lookup, Node
from eaglelocal.drafters.lookup_memory import LookupMemory
from eaglelocal.drafters.text_index import CONTEXT, MATCH_LENGTHS, Generations, SuffixCursor
from eaglelocal.errors import EngineError

MIN_MATCH = MATCH_LENGTHS[0]  # tokens; proposals after a single one are rarely right
LONG_MATCH = 16  # longer matches count as equal, so that the newest text is preferred
MAX_REREAD = 4096  # tokens of a shared prompt that are indexed again for another owner
POOL_TOKENS = 8192  # newest tokens of an owner's answers that can be found for certain
MAX_UNREAD = 32  # newest tokens of a text that are indexed later, several at a time
MAX_OWNERS = 16  # whose answers are kept; the least recent goes first
MAX_REMEMBERED = 16_384  # newest tokens of a request that go into a memory, at its end, between two steps
KNOWN_TOKENS = 64  # pieces that occur already are not stored again: system prompts, files that are sent again
PRIOR_WEIGHT = 3  # pseudo-occurrences that stand for the length of the match; see estimate_confidence


@dataclass(slots=True)
class Occurrence:
    """An earlier occurrence of the text's end, which is followed token by token.

    state       of the match and the tokens drafted after it, in `source`; 0 if they have not occurred together
    end         position in `source` where the followed occurrence ends
    position    of the last token, in the target's sequence
    unwritten   root and drafted tokens, if `source` is this text: an occurrence may overlap with them
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
        return Continuation(tokens, list(map(estimate_confidence, lengths, counts, counts[1:])))


def estimate_confidence(length: int, num_seen: int, num_agreeing: int) -> float:
    """Return the confidence of a proposal, in (0, 1): how many occurrences agree, with the match's length as a prior.

    The followed occurrence agrees by definition and does not count; of the `num_seen` - 1 others, `num_agreeing` - 1
    continued with the same token. Three more are assumed, of which length / (length + 3) agree: a long match that was
    seen once is worth as much as a short one that always continued alike.

        1 of 5 agrees, 2 tokens: 0.17    seen once, 2 tokens: 0.40    seen once, 30 tokens: 0.91
    """
    num_seen = max(num_seen, 1)
    num_agreeing = min(max(num_agreeing, 1), num_seen)
    imagined = PRIOR_WEIGHT * length / (length + PRIOR_WEIGHT)
    return (num_agreeing - 1 + imagined) / (num_seen - 1 + PRIOR_WEIGHT)


@dataclass(slots=True)
class NgramSlot:
    """The text of a slot, its index, and how far the text's end occurs in the other indexes of its owner."""

    owner: str = ""
    text: array[int] = field(default_factory=lambda: array("i"))  # committed, without a hole
    start: int = 0  # position of its first token
    num_prompt: int = 0
    num_pooled: int = 0  # tokens before this position are in the owner's pool, or are not of this request
    own: Generations | None = None  # None: to be built from the text
    num_read: int = 0  # tokens before this position are in the index, and the cursors have walked them
    cursors: list[SuffixCursor] = field(default_factory=list)
    occurrence: Occurrence | None = None

    @property
    def end(self) -> int:
        """Position after the text."""
        return self.start + len(self.text)

    def cut(self, position: int, start: int) -> None:
        """Keep the text before `position`; if that is nothing, it begins at `start`."""
        del self.text[max(position - self.start, 0) :]
        self.start = self.start if self.text else start
        self.num_pooled = self.num_read = self.end
        self.cursors, self.occurrence = [], None
        if self.own is not None:
            self.own.begin(self.text[-CONTEXT:])

    def take_answer(self) -> array[int]:
        """Return the tokens that were answered since the last call."""
        self.num_pooled = max(self.num_pooled, self.num_prompt)
        return self.take_text()

    def take_text(self) -> array[int]:
        """Return the tokens that were committed since the last call, of prompt and answer."""
        first, self.num_pooled = self.num_pooled - self.start, self.end
        return self.text[max(first, 0) :]

    def index(self, max_tokens: int) -> Generations:
        """Return the index of the whole text.

        The text is indexed at the first call: a request without lookups indexes nothing.
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

    def follow(self, sources: list[SuffixAutomaton]) -> None:
        """Follow the text in exactly these sources; in a new or grown one, from the last tokens on."""
        current = {cursor.source: cursor for cursor in self.cursors if not cursor.is_outgrown}
        if list(current) == sources:
            return
        self.cursors = [current[s] if s in current else SuffixCursor(s) for s in sources]
        for cursor in self.cursors:
            if cursor.source not in current:
                cursor.walk(self.text[-CONTEXT:])


class Ngram(Lookup):
    """A drafter without a model.

    max_tokens  of a slot's text: the context. An index holds twice as many at most
    memory      of the owners' texts on disk; None: only recent answers are found, and only until the process ends

    A slot for which `begin` was not called belongs to "", and all its text counts as an answer.
    """

    traits = DraftTraits(name="ngram")

    def __init__(
        self,
        max_tokens: int,
        *,
        pool_tokens: int = POOL_TOKENS,
        max_owners: int = MAX_OWNERS,
        memory: LookupMemory | None = None,
    ) -> None:
        self._max_tokens, self._max_owners, self._memory = max_tokens, max_owners, memory
        self._pool_tokens = memory.max_tokens if memory else pool_tokens
        self._slots: defaultdict[int, NgramSlot] = defaultdict(NgramSlot)
        self._pools: dict[str, Generations] = {}  # by owner; the one that answered last comes last

    def begin(self, slot: int, owner: str, num_prompt: int) -> None:
        """Start a request of `owner` in the slot; its answer begins after `num_prompt` tokens.

        Call it before the first rows of the request, before or after the `rollback` to the shared prefix.
        """
        self.end(slot)
        state = self._slots[slot]
        if owner != state.owner:
            state.owner, state.own, state.cursors, state.occurrence = owner, None, [], None
            state.num_read = state.end  # another owner's text is never read
        state.num_prompt = num_prompt

    def end(self, slot: int) -> None:
        """Add the finished answer to the owner's pool, so that other requests can draft from it. Safe to call twice."""
        state = self._slots[slot]
        if self._memory is not None and not state.owner.startswith(PRIVATE):
            self._remember(self._memory, state.owner, state.take_text()[-MAX_REMEMBERED:])
        elif len(answer := state.take_answer()) > MIN_MATCH:
            self._pool(state.owner).begin(answer)

    def _remember(self, memory: LookupMemory, owner: str, text: array[int]) -> None:
        if len(text) <= MIN_MATCH:
            return
        pool = self._pool(owner)
        for piece in select_unknown(pool, text):
            pool.begin(piece)
            memory.append(owner, piece)

    def _pool(self, owner: str) -> Generations:
        self._pools[owner] = pool = self._pools.pop(owner, None) or self._new_pool(owner)
        if len(self._pools) > self._max_owners:
            del self._pools[next(iter(self._pools))]
        return pool

    def _new_pool(self, owner: str) -> Generations:
        pool = Generations(self._pool_tokens)
        for text in self._memory.read(owner) if self._memory else ():
            pool.begin(text)
        return pool

    def _find_pool(self, owner: str) -> Generations | None:
        """Return the owner's pool, loaded from the memory if there is one; None if the owner has no answers yet."""
        return self._pools.get(owner) if self._memory is None else self._pool(owner)

    def estimate(self, root: Node) -> float:
        """Return the confidence as if the longest known match had been seen once."""
        state = self._slots[root.slot]
        own = state.own
        if own is None or state.end - state.num_read > MAX_UNREAD:
            own = state.index(self._max_tokens)
        pool, longest = self._find_pool(state.owner), 0
        for length in MATCH_LENGTHS:
            run = state.text[1 - length :]
            run.append(root.token)
            key = hash(tuple(run))
            if not (own.may_contain(key) or (pool is not None and pool.may_contain(key))):
                unread = state.text[max(state.num_read - state.start - length + 1, 0) :]
                if run.tobytes() not in unread.tobytes():
                    break
            longest = length
        return estimate_confidence(longest, 1, 1) if longest else 0.0

    def draft(
        self, nodes: Sequence[Node], depth: int = 1, extra_levels: ExtraLevels = NO_EXTRA_LEVELS
    ) -> list[Continuation]:
        return [self._draft_after(node, depth) for node in nodes]

    def _draft_after(self, node: Node, depth: int) -> Continuation:
        state = self._slots[node.slot]
        if node.is_root:
            if node.position != state.end:
                raise make_hole_error(node.slot, state, node.position)
            state.occurrence = self._match(state, node)
        occurrence = state.occurrence
        if occurrence is None or (occurrence.token, occurrence.position) != (node.token, node.position):
            return NOTHING  # another drafter proposed the node
        return occurrence.grow(depth)

    def _match(self, state: NgramSlot, root: Node) -> Occurrence | None:
        """Return the longest match that has a continuation, of the text and the root; the slot's own text wins ties."""
        own, pool = state.index(self._max_tokens), self._find_pool(state.owner)
        others = [own.old, pool.young, pool.old] if pool else [own.old]
        state.follow([source for source in others if source is not None])
        young = own.young
        matches = [(young, *young.follow(young.last, len(young), (root.token,)))]
        matches += [(cursor.source, *cursor.peek(root.token)) for cursor in state.cursors]
        best = None
        for source, end, length in matches:
            if length < MIN_MATCH or (best is not None and min(length, LONG_MATCH) <= min(best.length, LONG_MATCH)):
                continue
            unwritten = [root.token] if source is young else None
            occurrence = Occurrence(source, end, length, root.position, root.token, unwritten)
            if occurrence.next_token is not None:
                best = occurrence
        return best

    def commit(self, committed: Sequence[Committed]) -> None:
        for rows in committed:
            state = self._slots[rows.slot]
            if rows.first_position > state.end:
                raise make_hole_error(rows.slot, state, rows.first_position)
            self._commit(state, rows)

    def buffer(self, committed: Sequence[Committed]) -> None:
        """Commit the rows as `commit` does, which costs little enough; after a hole the text starts over."""
        for rows in committed:
            state = self._slots[rows.slot]
            if rows.first_position > state.end:
                self.end(rows.slot)
                state.cut(0, rows.first_position)
            self._commit(state, rows)

    def skip(self, image: Committed) -> None:
        """Commit the image's negative tokens: they match where the same image occurs again, and are never drafted."""
        self.buffer([image])

    def _commit(self, state: NgramSlot, rows: Committed) -> None:
        state.text.extend(rows.tokens[state.end - rows.first_position :])
        state.occurrence = None

    def rollback(self, slot: int, position: int) -> None:
        self.end(slot)
        state = self._slots[slot]
        if position == 0:
            state.own = None
        if position < state.end:
            if position and state.num_read < state.end:
                state.index(self._max_tokens)  # the part that is cut off may be generated again
            state.cut(position, position)

    def copy_slot(self, source: int, target: int, position: int) -> None:
        """Copy only the tokens and index them again, so that nothing else of the source's owner is copied."""
        source_slot = self._slots[source]
        self._replace_text(
            target, source_slot.text[: max(position - source_slot.start, 0)], source_slot.start, position
        )

    def swap_in(self, slot: int, swapped: None, tokens: Sequence[int]) -> None:
        self._replace_text(slot, array("i", tokens), 0, len(tokens))

    def _replace_text(self, slot: int, text: array[int], start: int, position: int) -> None:
        self.end(slot)
        state = self._slots[slot]
        state.text, state.start, state.own = text, start, None
        state.cut(position, position)

    def close(self) -> None:
        self._slots.clear()
        self._pools.clear()


def select_unknown(pool: Generations, text: array[int]) -> list[array[int]]:
    """Return the parts of a text that the pool lacks, each with its preceding tokens as context."""
    parts: list[array[int]] = []
    first = None  # of the part that is being collected
    for at in range(0, len(text), KNOWN_TOKENS):
        is_known = pool.contains(text[at : at + KNOWN_TOKENS])
        if first is None and not is_known:
            first = at
        elif first is not None and is_known:
            parts.append(text[max(first - CONTEXT, 0) : at])
            first = None
    return parts if first is None else [*parts, text[max(first - CONTEXT, 0) :]]


def make_hole_error(slot: int, state: NgramSlot, position: int) -> EngineError:
    return EngineError(f"hole in the text of slot {slot} at position {state.end}: the next rows begin at {position}")
