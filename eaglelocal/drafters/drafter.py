"""The interface of drafters: they propose tokens after given nodes, and are shown what was committed.

A drafter is independent of costs, policies, verification and other drafters. It declares what it needs of the target
(taps); the engine owns the loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from eaglelocal.core.batch import NO_FURTHER, Bytes, ExtraLevels, Features, Floats, Proposals
from eaglelocal.core.draft import ROOT

KnownT = TypeVar("KnownT")


class Node(NamedTuple):
    """A token after which to draft: the root (the last sampled token) or a node of the slot's draft."""

    slot: int
    place: int  # node in the slot's draft; ROOT for the root
    token: int
    position: int  # of the token, in the target's sequence

    @property
    def is_root(self) -> bool:
        return self.place == ROOT


class Continuation(NamedTuple):
    """A drafter's proposal after a node: its best child, the best child of that, and so on."""

    tokens: Sequence[int] = ()
    confidences: Sequence[float] = ()  # how sure it is of each, see backend/top_tokens.py; NaN where it reports none
    siblings: Sequence[tuple[int, float]] = ()  # sibling (second choice) of each and its confidence; or nothing at all


NOTHING = Continuation()


class Committed(NamedTuple):
    """Rows that the target decoded and that stay: prompt tokens, or a root with its accepted drafts."""

    slot: int
    first_position: int
    tokens: Sequence[int]
    features: Features | Floats | None  # of these rows, if the drafter asked for taps


class Drafter(Protocol):
    """A source of drafts, batched over slots. Slots that sleep get `buffer`; `draft` and `commit` wake them."""

    @property
    def name(self) -> str: ...

    @property
    def taps(self) -> tuple[int, ...]:
        """Layer inputs of the target that `commit` needs; empty: none."""

    @property
    def block_size(self) -> int:
        """Tokens that `draft` proposes in one pass, and none after them (a block). 1: each takes a pass of its own."""

    @property
    def reuse_margin(self) -> int:
        """Rows of a reused prefix that the target must decode again for this drafter's sake."""

    @property
    def native_s(self) -> float:
        """Seconds spent inside the native library so far."""

    def begin(self, slot: int, owner: str, num_prompt: int) -> None:
        """Start a request in the slot. An owner's text must never be drafted for another owner."""

    def end(self, slot: int) -> None:
        """End the slot's request; its rows may be reused."""

    def draft(self, nodes: Sequence[Node], depth: int = 1, further: ExtraLevels = NO_FURTHER) -> list[Continuation]:
        """Return at most `depth` tokens after each node; none where there is nothing to propose, or no state to do so.

        further  more levels, as long as each token is that confident; for drafters that know this at once

        A slot is expanded from its root first, and then from the last token that came of it, until `commit` shows how
        the text went on.
        """

    def commit(self, committed: Sequence[Committed]) -> None:
        """Learn what was committed. Rows of a slot arrive in order and without holes."""

    def buffer(self, committed: Sequence[Committed]) -> None:
        """Remember the newest rows of slots that sleep, and do no other work."""

    def skip(self, image: Committed) -> None:
        """Skip an image that the target has read: drafters cannot read its rows, its tokens only identify it."""

    def drop(self, slot: int, position: int) -> None:
        """Forget the slot's tokens from `position` on; 0 forgets the slot."""

    def fork(self, source: int, target: int, position: int) -> None:
        """Let the target slot's text begin as the source's does, up to `position`; what it held is void.

        It is a prompt of the target, whoever wrote the source: what was answered there must not be drafted here.
        """

    def swapped_bytes(self, slot: int) -> int:
        """Return the bytes that `swap_out` takes in main memory; a few tokens do not count."""

    def swap_out(self, slot: int) -> Swapped[Any]:
        """Return what is known of the slot, copied to main memory; the slot stays as it is. Raises ResourceError."""

    def swap_in(self, slot: int, swapped: Swapped[Any], tokens: Sequence[int]) -> None:
        """Restore the slot as it was when this was swapped out; what it held is void.

        tokens  its text, or as much of it as stays when the slot is then dropped from there on: as for `fork`, a prompt
        """

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Swapped(Generic[KnownT]):
    """A copy of what a drafter knew of a slot, and of the slot's cells in its context (None: it has none)."""

    state: KnownT
    cells: Bytes | None = None


class NativeContext(Protocol):
    """A context of the native library."""

    @property
    def native_s(self) -> float: ...

    def close(self) -> None: ...


class ContextDrafter:
    """The common part of drafters over a context, to which owners and ends of requests make no difference."""

    block_size = 1

    def __init__(self, context: NativeContext) -> None:
        self._native = context

    @property
    def native_s(self) -> float:
        return self._native.native_s

    def begin(self, slot: int, owner: str, num_prompt: int) -> None:
        pass

    def end(self, slot: int) -> None:
        pass

    def close(self) -> None:
        self._native.close()


def behind(features: Features | Floats, num_rows: int) -> Features | Floats:
    """Return all rows but the first num_rows."""
    if not num_rows:
        return features
    return features[num_rows:] if isinstance(features, np.ndarray) else features.after(num_rows)


def continuations(said: Proposals, num_rows: int) -> list[Continuation]:
    """Return one continuation per row, from proposals that are listed level by level."""
    tokens, *other_tokens = zip(*said.tokens, strict=True)  # by rank
    confidences, *other_confidences = zip(*said.confidences, strict=True)
    siblings = list(zip(other_tokens[0], other_confidences[0], strict=True)) if other_tokens else []
    return [Continuation(tokens[i::num_rows], confidences[i::num_rows], siblings[i::num_rows]) for i in range(num_rows)]
