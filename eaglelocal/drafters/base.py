"""What a drafter is: it proposes children of given nodes and is shown what was committed.

A drafter knows nothing of costs, policies, verification or other drafters. It declares what it needs
of the target (taps); the engine owns the loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from eaglelocal.core.batch import NO_FURTHER, Bytes, Features, Floats, Further, Proposals
from eaglelocal.core.draft import ROOT

KnownT = TypeVar("KnownT")


class Node(NamedTuple):
    """A token to be expanded: the root (the last sampled token) or a node of the slot's draft."""

    slot: int
    place: int  # in the slot's draft; ROOT for the root
    token: int
    position: int  # of the token, in the target's sequence

    @property
    def is_root(self) -> bool:
        return self.place == ROOT


class Continuation(NamedTuple):
    """What a drafter says behind a node: its best child, the best child of that, and so on."""

    tokens: Sequence[int] = ()
    confidences: Sequence[float] = ()  # how sure it is of each, see backend/choices.py; NaN where it tells none
    seconds: Sequence[tuple[int, float]] = ()  # what it would say instead of each, and how surely; or nothing at all


NOTHING = Continuation()


class Committed(NamedTuple):
    """Rows that the target decoded and that stay: prompt tokens, or a root with its accepted drafts."""

    slot: int
    first_position: int
    tokens: Sequence[int]
    features: Features | Floats | None  # of as many rows, if the drafter asked for taps


class Drafter(Protocol):
    """All verbs are batched over slots. A slot that sleeps is dozed through; `expand` and `observe` wake it."""

    @property
    def name(self) -> str: ...

    @property
    def taps(self) -> tuple[int, ...]:
        """Layer inputs of the target that `observe` needs; empty: none."""

    @property
    def at_once(self) -> int:
        """Tokens that `expand` says for the price of one; nothing follows them. 1: each takes a pass of its own."""

    @property
    def reuse_margin(self) -> int:
        """Rows of a reused prefix that the target must decode again for this drafter's sake."""

    @property
    def native_s(self) -> float:
        """Seconds spent inside the native library so far."""

    def begin(self, slot: int, owner: str, num_prompt: int) -> None:
        """A request takes the slot. What one owner said must never be drafted for another."""

    def end(self, slot: int) -> None:
        """The request is over; its rows may be reused."""

    def expand(self, nodes: Sequence[Node], depth: int = 1, further: Further = NO_FURTHER) -> list[Continuation]:
        """At most `depth` tokens behind each node; none where there is nothing to propose, or too few to go on from.

        further  more of them, of whoever can tell at once how sure it is

        A slot is expanded from its root first, and then from the last token that came of it, until `observe` shows
        how the text went on.
        """

    def observe(self, committed: Sequence[Committed]) -> None:
        """Learn what was committed. Rows of a slot arrive in order and without holes."""

    def doze(self, committed: Sequence[Committed]) -> None:
        """Remember the newest rows of slots that sleep, and do no work."""

    def skip(self, image: Committed) -> None:
        """The target has read an image: rows that no drafter can read, whose tokens only tell it from others."""

    def drop(self, slot: int, position: int) -> None:
        """Tokens of the slot from `position` on are void; 0 forgets the slot."""

    def fork(self, source: int, target: int, position: int) -> None:
        """The target slot's text now begins as the source's does, up to `position`; what it held is void.

        A prompt of the target, whoever wrote the source: of what was answered there nothing may be drafted here.
        """

    def swapped_bytes(self, slot: int) -> int:
        """That what is known of it would take in main memory; where that is a few tokens, they do not count."""

    def swap_out(self, slot: int) -> Swapped[Any]:
        """What is known of the slot, as owned copies in main memory; the slot stays as it is. Raises ResourceError."""

    def swap_in(self, slot: int, swapped: Swapped[Any], tokens: Sequence[int]) -> None:
        """The slot is as it was when this was swapped out; what it held is void.

        tokens  its text, or as much of it as stays when the slot is then dropped from there on: as for `fork`, a prompt
        """

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Swapped(Generic[KnownT]):
    """What a drafter knew of a slot, and the slot's cells in its context; None: it has none there."""

    state: KnownT
    cells: Bytes | None = None


class Native(Protocol):
    """A context of the native library."""

    @property
    def native_s(self) -> float: ...

    def close(self) -> None: ...


class OverContext:
    """What drafters over a context have alike: who asks, and that an answer is over, is nothing to them."""

    at_once = 1

    def __init__(self, context: Native) -> None:
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
    """All rows but the first."""
    if not num_rows:
        return features
    return features[num_rows:] if isinstance(features, np.ndarray) else features.after(num_rows)


def continuations(said: Proposals, num_rows: int) -> list[Continuation]:
    """By row, of what was said level by level."""
    tokens, *other_tokens = zip(*said.tokens, strict=True)  # by rank
    confidences, *other_confidences = zip(*said.confidences, strict=True)
    seconds = list(zip(other_tokens[0], other_confidences[0], strict=True)) if other_tokens else []
    return [Continuation(tokens[i::num_rows], confidences[i::num_rows], seconds[i::num_rows]) for i in range(num_rows)]
