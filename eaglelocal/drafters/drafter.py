"""The interface of drafters, which propose tokens after given nodes and learn what was committed.

    begin, draft, commit, rollback, end    each drafter has these; `buffer` and `skip` replace `commit` in two cases
    DraftTraits                            what it needs of the target, and how it drafts
    SlotState                              optional: copies of a slot's state
    CatchesUp  optional: decodes deferred tokens before it drafts
    Lookup                                 optional: a cheap answer whether there is anything to propose

A drafter does not know costs, policies, verification or other drafters. The engine owns the draft loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np

from eaglelocal.core.batch import NO_EXTRA_LEVELS, Bytes, ExtraLevels, Features, Floats, Proposals
from eaglelocal.core.draft import ROOT
from eaglelocal.core.ports import NativeContext
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import MAX_DRAFT_TOKENS

StateT = TypeVar("StateT")
PRIVATE = "\0private "  # prefix of the names of owners whose texts are not kept on disk


class Node(NamedTuple):
    """A token after which to draft: the root (the last sampled token) or the last token of a chain of its tree.

    A tree is made of chains. The trunk follows first choices from the root on. Every other chain leaves an earlier one:
    its first token is an alternative to one of that chain's tokens.
    """

    slot: int
    place: int  # of the token in its chain; ROOT for the root
    token: int
    position: int  # of the token, in the target's sequence
    chain: int = 0  # number of the chain in the slot's tree; 0: the trunk
    parent: int = 0  # number of the chain that it leaves

    @property
    def is_root(self) -> bool:
        return self.place == ROOT


Siblings = Sequence[tuple[int, float]]  # other choices in a token's place, best first, and their confidences


class Continuation(NamedTuple):
    """A drafter's proposal after a node: its best child, the best child of that, and so on."""

    tokens: Sequence[int] = ()
    confidences: Sequence[float] = ()  # of each token, see backend/top_tokens.py; NaN where the drafter reports none
    siblings: Sequence[Siblings] = ()  # the other choices at each token, best first; or empty


NOTHING = Continuation()


class Committed(NamedTuple):
    """Rows that the target decoded and that stay: prompt tokens, or a root and its accepted tokens."""

    slot: int
    first_position: int
    tokens: Sequence[int]
    features: Features | Floats | None  # of these rows, if the drafter asked for taps
    refused: Sequence[tuple[int, int]] = ()  # see DraftTraits.reads_refused


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftTraits:
    """The facts that a drafter declares: its needs of the target, and how it drafts.

    name          of the method, as statistics show it
    taps          layers of the target whose inputs `commit` needs; empty: none
    block_size    tokens that `draft` proposes in one pass, and none after them (a block); 1: each token takes a pass
    max_depth     tokens that it can draft after a root, in several passes
    reuse_margin  rows of a reused prefix that the target must decode again for this drafter
    num_branches  chains of a slot's tree that it can draft besides the trunk
    reads_refused `commit` needs the drafted tokens that were refused, each with the target's likeliest token after it;
                  the first of them stood where the next root stands
    catches_up  it defers work while it sleeps or until a draft, and has CatchesUp's method
    reads_texts   its model reads all of a text itself, but not while it sleeps
    """

    name: str
    taps: tuple[int, ...] = ()
    block_size: int = 1
    max_depth: int = MAX_DRAFT_TOKENS
    reuse_margin: int = 0
    num_branches: int = 0
    reads_refused: bool = False
    catches_up: bool = False
    reads_texts: bool = False


class Drafter(Protocol):
    """A source of drafts, batched over slots. Sleeping slots get `buffer`; `draft` and `commit` wake them."""

    @property
    def traits(self) -> DraftTraits: ...

    @property
    def native_s(self) -> float:
        """The seconds spent inside the native library so far."""

    def begin(self, slot: int, owner: str, num_prompt: int) -> None:
        """Start a request in the slot. An owner's text must never be drafted for another owner."""

    def draft(
        self, nodes: Sequence[Node], depth: int = 1, extra_levels: ExtraLevels = NO_EXTRA_LEVELS
    ) -> list[Continuation]:
        """Return at most `depth` tokens after each node; none if the drafter has nothing to propose there, or no state.

        extra_levels  more levels, as long as each token is confident enough; only for drafters that can check that
        within a call

        Each slot is drafted for from its root first, and then from the last token of its chain, until `commit`. A call
        may have several nodes of a slot, and then drafts one level.
        """

    def commit(self, committed: Sequence[Committed]) -> None:
        """Learn what was committed. The rows of a slot arrive in order and without holes."""

    def rollback(self, slot: int, position: int) -> None:
        """Forget the slot's tokens from `position` on; 0 empties the slot."""

    def end(self, slot: int) -> None:
        """End the slot's request; its rows may be reused."""

    def buffer(self, committed: Sequence[Committed]) -> None:
        """Keep the newest rows of sleeping slots, and do no other work."""

    def skip(self, image: Committed) -> None:
        """Skip an image that the target has read: its rows have no features, its tokens only identify it."""

    def close(self) -> None: ...


@runtime_checkable
class SlotState(Protocol):
    """Optional methods of a drafter that can copy the state of a slot, and swap it to RAM and back.

    Any other drafter has an empty slot after a copy or swap, and the next rows of that slot begin at any position.
    """

    def copy_slot(self, source: int, target: int, position: int) -> None:
        """Replace the target slot by a copy of the source slot's first `position` tokens.

        For the target slot they are prompt, even where they were answers of the source slot.
        """

    def swapped_bytes(self, slot: int) -> int:
        """Return the bytes that `swap_out` takes in RAM; a few tokens do not count."""

    def swap_out(self, slot: int) -> Swapped[Any]:
        """Return a copy of the slot's state in RAM; the slot stays as it is. Raises ResourceError."""

    def swap_in(self, slot: int, swapped: Swapped[Any], tokens: Sequence[int]) -> None:
        """Restore the slot from what `swap_out` returned.

        tokens  its text, or as much of it as a following `rollback` leaves; a prompt, as in `copy_slot`
        """


@runtime_checkable
class TextState(Protocol):
    """Optional method of a drafter that can restore a slot from its tokens alone.

    Any other drafter starts over after a text of which only the target's cells were restored.
    """

    def resume(self, slot: int, tokens: Sequence[int]) -> None:
        """Restore the slot from its tokens alone; `tokens` as in SlotState.swap_in."""


class CatchesUp(Protocol):
    """The further method of a drafter that defers work (DraftTraits.catches_up)."""

    def catch_up(self, slots: Sequence[int]) -> int:
        """Decode the deferred tokens of these slots, and return their number; `draft` then has few left.

        Called before drafting from the slots' roots and timed separately: it may take far longer than a draft.
        """


@runtime_checkable
class Lookup(Drafter, Protocol):
    """A drafter without a model, which looks up earlier text: it says cheaply whether a draft could find anything."""

    def may_match(self, root: Node, length: int) -> bool:
        """Return False if the last `length` tokens, the root included, never stood together before.

        Then `draft` could only propose the continuation of a shorter match. The call costs a few microseconds, so it
        can be made in every step. Lengths are those of core/draft.py.
        """


@dataclass(frozen=True, slots=True)
class Swapped(Generic[StateT]):
    """A copy of a drafter's state of a slot, and of the slot's cells in its context; None if it has no cells."""

    state: StateT
    cells: Bytes | None = None


class ContextDrafter:
    """The common part of drafters over a context. It ignores owners and the ends of requests."""

    def __init__(self, context: NativeContext, traits: DraftTraits) -> None:
        self._native, self.traits = context, traits

    @property
    def native_s(self) -> float:
        return self._native.native_s

    def begin(self, slot: int, owner: str, num_prompt: int) -> None:
        pass

    def catch_up(self, slots: Sequence[int]) -> int:
        return 0

    def end(self, slot: int) -> None:
        pass

    def close(self) -> None:
        self._native.close()


def skip_rows(features: Features | Floats, num_rows: int) -> Features | Floats:
    """Return all rows but the first num_rows."""
    if not num_rows:
        return features
    return features[num_rows:] if isinstance(features, np.ndarray) else features.after(num_rows)


def split_proposals(proposals: Proposals, num_rows: int) -> list[Continuation]:
    """Return one continuation per row, from proposals that are listed level by level."""
    tokens, *other_tokens = zip(*proposals.tokens, strict=True)  # by rank
    confidences, *other_confidences = zip(*proposals.confidences, strict=True)
    others = [zip(*ranked, strict=True) for ranked in zip(other_tokens, other_confidences, strict=True)]
    siblings = list(zip(*others, strict=True)) if others else []
    return [Continuation(tokens[i::num_rows], confidences[i::num_rows], siblings[i::num_rows]) for i in range(num_rows)]
