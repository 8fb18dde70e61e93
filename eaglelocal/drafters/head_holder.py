"""A drafter whose head can be exchanged between two steps, while answers run.

Everything that uses the drafter has the holder, so that a new head is in use everywhere at once. The new head has read
nothing of the running texts: it takes over what its predecessor kept of the target's states, and drafts for the others
from the next rows on, as a head does after a long sleep. Does not know how heads are opened.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

from eaglelocal.drafters.drafter import Drafter, DraftTraits, SlotState, Swapped
from eaglelocal.errors import IncompatibleError


@runtime_checkable
class Exchangeable(Drafter, SlotState, Protocol):
    """A drafter over a head that another one of the same kind can replace."""

    def inherit(self, old: Self) -> None:
        """Read the target's rows from now on, and take over what `old` kept of them and of running requests.

        `old` is not used afterwards.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenHead:
    """A head that is loaded.

    close    frees its memory; safe in any thread once the head is not used any more
    path     its file
    version  its number among the versions that were learned; 0: the base head
    """

    drafter: Exchangeable
    close: Callable[[], None]
    path: Path
    version: int = 0


class OwnState(NamedTuple):
    """The state of a slot in RAM, and how many heads had been replaced: its cells mean nothing to a later one."""

    generation: int
    swapped: Swapped[Any]


OpenHeadFile = Callable[[Path, int], OpenHead]
CloseHead = Callable[[], None]
Exchange = Callable[[], CloseHead]


class HeadHolder:
    """The drafter (drafters.drafter.Drafter) over the head in use.

    open_head  opens the head in a file, with its version, in any thread; raises EagleLocalError
    """

    def __init__(self, head: OpenHead, open_head: OpenHeadFile) -> None:
        self._open_head = open_head
        self._earlier_s, self._generation = 0.0, 0  # native seconds of heads that were replaced, and their number
        self._use(head)

    def _use(self, head: OpenHead) -> None:
        self._head, drafter = head, head.drafter
        self.begin, self.end, self.skip, self.rollback = drafter.begin, drafter.end, drafter.skip, drafter.rollback
        self.draft, self.commit, self.buffer = drafter.draft, drafter.commit, drafter.buffer
        self.copy_slot, self.swapped_bytes = drafter.copy_slot, drafter.swapped_bytes

    @property
    def traits(self) -> DraftTraits:
        return self._head.drafter.traits

    @property
    def native_s(self) -> float:
        return self._earlier_s + self._head.drafter.native_s

    @property
    def version(self) -> int:
        """The number of the version that drafts; 0: the base head."""
        return self._head.version

    @property
    def path(self) -> Path:
        """The file of the head that drafts."""
        return self._head.path

    def prepare(self, path: Path, version: int) -> Exchange:
        """Open a head; return what exchanges it, which returns what closes the old one. Safe in any thread.

        The exchange is called between two steps. Raises IncompatibleError for a head that drafts differently, and the
        errors of opening it.
        """
        head = self._open_head(path, version)
        try:
            self._check(head)
        except IncompatibleError:
            head.close()
            raise
        return lambda: self._exchange(head)

    def _check(self, head: OpenHead) -> None:
        """Raise IncompatibleError if a head cannot replace the one in use."""
        if type(head.drafter) is not type(self._head.drafter) or head.drafter.traits != self.traits:
            raise IncompatibleError(
                f"the new head drafts differently ({describe(head.drafter.traits)}) from the one in use "
                f"({describe(self.traits)})",
                hint="--draft HEAD.gguf",
            )

    def _exchange(self, head: OpenHead) -> CloseHead:
        """Draft with another head from now on; return what closes the old one."""
        old = self._head
        head.drafter.inherit(old.drafter)
        self._earlier_s = self.native_s - head.drafter.native_s  # opening it is no time of a step
        self._generation += 1
        self._use(head)
        return old.close

    def swap_out(self, slot: int) -> Swapped[OwnState]:
        swapped = self._head.drafter.swap_out(slot)
        return Swapped(OwnState(self._generation, swapped))

    def swap_in(self, slot: int, swapped: Swapped[OwnState], tokens: Sequence[int]) -> None:
        if swapped.state.generation == self._generation:
            self._head.drafter.swap_in(slot, swapped.state.swapped, tokens)
        else:
            self.rollback(slot, 0)

    def close(self) -> None:
        self._head.close()


def describe(traits: DraftTraits) -> str:
    """Return what distinguishes a head's way to draft, such as `eagle3 of layers 2, 18, 33`."""
    block = f", {traits.block_size} tokens a pass" if traits.block_size > 1 else ""
    return f"{traits.name} of layers {', '.join(map(str, traits.taps))}{block}"
