"""The interface of drafters, which propose tokens after given nodes and learn what was committed.

    begin, draft, commit, rollback, end    the verbs; `buffer`, `skip`, `catch_up` and copies of slots have defaults
    DraftTraits                            what it needs of the target, and how it drafts
    Lookup                                 one without a model, with a cheap answer whether it could find anything

A drafter does not know costs, policies, verification or other drafters. The engine owns the draft loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from eaglelocal.core.batch import NO_EXTRA_LEVELS, ExtraLevels, Features, Floats, Proposals
from eaglelocal.core.draft import ROOT
from eaglelocal.core.ports import NativeContext
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import MAX_DRAFT_TOKENS

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

    name           of the method, as statistics show it
    taps           layers of the target whose inputs `commit` needs; empty: none
    block_size     tokens that `draft` proposes in one pass, and none after them (a block); 1: each token takes a pass
    max_depth      tokens that it can draft after a root, in several passes
    reuse_margin   rows of a reused prefix that the target must decode again for this drafter
    num_branches   chains of a slot's tree that it can draft besides the trunk
    reads_refused  `commit` needs the drafted tokens that were refused, each with the target's likeliest token after it;
                   the first of them stood where the next root stands
    max_unread     newest tokens of a text that it reads when it wakes; what is older it drafts without
    """

    name: str
    taps: tuple[int, ...] = ()
    block_size: int = 1
    max_depth: int = MAX_DRAFT_TOKENS
    reuse_margin: int = 0
    num_branches: int = 0
    reads_refused: bool = False
    max_unread: int = 0


class Drafter:
    """A source of drafts, batched over slots. Sleeping slots get `buffer`; `draft` and `commit` wake them.

    A subclass has `traits`, and the methods that raise here.
    """

    traits: DraftTraits

    @property
    def native_s(self) -> float:
        """The seconds spent inside the native library so far."""
        return 0.0

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
        raise NotImplementedError

    def commit(self, committed: Sequence[Committed]) -> None:
        """Learn what was committed. The rows of a slot arrive in order and without holes."""
        raise NotImplementedError

    def rollback(self, slot: int, position: int) -> None:
        """Forget the slot's tokens from `position` on; 0 empties the slot."""
        raise NotImplementedError

    def end(self, slot: int) -> None:
        """End the slot's request; its rows may be reused."""

    def close(self) -> None:
        """Free what the drafter holds."""

    # ---- optional: the defaults do for a drafter that keeps little
    def buffer(self, committed: Sequence[Committed]) -> None:
        """Keep the newest rows of sleeping slots, and do no other work."""
        self.commit(committed)

    def skip(self, image: Committed) -> None:
        """Skip an image that the target has read: its rows have no features, its tokens only identify it.

        By default drafting starts over after it.
        """
        self.rollback(image.slot, 0)

    def catch_up(self, slots: Sequence[int]) -> int:
        """Decode the deferred tokens of these slots, and return their number; `draft` then has few left.

        Called before drafting from the slots' roots and timed separately: it may take far longer than a draft.
        """
        return 0

    # A drafter without these four has an empty slot after a copy or swap; its next rows begin at any position.
    def copy_slot(self, source: int, target: int, position: int) -> None:
        """Replace the target slot by a copy of the source slot's first `position` tokens.

        For the target slot they are prompt, even where they were answers of the source slot.
        """
        self.rollback(target, 0)

    def swapped_bytes(self, slot: int) -> int:
        """Return the bytes that `swap_out` takes in RAM; a few tokens do not count."""
        return 0

    def swap_out(self, slot: int) -> object:
        """Return a copy of the slot's state in RAM; the slot stays as it is. Raises ResourceError."""
        return None

    def swap_in(self, slot: int, swapped: Any, tokens: Sequence[int]) -> None:
        """Restore the slot from what `swap_out` returned; from its tokens alone, or empty, if that is None.

        tokens  its text, or as much of it as a following `rollback` leaves; a prompt, as in `copy_slot`
        """
        self.rollback(slot, 0)


class Lookup(Drafter):
    """A drafter without a model, which looks up earlier text: it says cheaply how good a draft could be."""

    def estimate(self, root: Node) -> float:
        """Return about the confidence of the first token that `draft` would propose; 0.0 if it would propose nothing.

        The call costs a few microseconds, so it can be made in every step.
        """
        raise NotImplementedError


class ContextDrafter(Drafter):
    """A drafter over a context."""

    def __init__(self, context: NativeContext, traits: DraftTraits) -> None:
        self._native, self.traits = context, traits

    @property
    def native_s(self) -> float:
        return self._native.native_s

    def close(self) -> None:
        self._native.close()


class Exchangeable(ContextDrafter):
    """A drafter over a head that another one of the same kind can replace (head_holder.py)."""

    def inherit(self, old: Any) -> None:
        """Take over what `old`, of the same class, kept of the target's rows and knows of running requests."""
        raise NotImplementedError

    def attach(self) -> None:
        """Read the target's rows from now on, in place of the head before. Called between two decodes."""


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
