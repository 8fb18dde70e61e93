"""The common part of drafters that keep nothing of a slot but the target's state at its newest row, asleep or awake."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Generic

from eaglelocal.core.ports import NativeContext
from eaglelocal.core.records import dataclass
from eaglelocal.drafters.drafter import Committed, ContextDrafter, DraftTraits, Node, StateT, Swapped


@dataclass(slots=True)
class NewestState(Generic[StateT]):
    """`state` is the target's at the newest committed row, at position end - 1; None: it is not known."""

    state: StateT | None = None
    end: int = 0


class NewestStateDrafter(ContextDrafter, Generic[StateT]):
    """A drafter (drafters.drafter.Drafter) without `draft`. Subclasses read the states of committed rows."""

    def __init__(self, context: NativeContext, traits: DraftTraits) -> None:
        super().__init__(context, traits)
        self._slots: defaultdict[int, NewestState[StateT]] = defaultdict(NewestState)

    def read_states(self, committed: Sequence[Committed]) -> Sequence[StateT | None]:
        """Return an owned copy of the state at the last of each of these rows."""
        raise NotImplementedError

    def find_state(self, root: Node) -> StateT | None:
        """Return the state that gave the root; None where it is not known."""
        slot = self._slots[root.slot]
        return slot.state if root.position == slot.end else None

    def commit(self, committed: Sequence[Committed]) -> None:
        for rows, state in zip(committed, self.read_states(committed), strict=True):
            self._slots[rows.slot] = NewestState(state, rows.first_position + len(rows.tokens))

    buffer = commit  # the newest state is all that it needs to wake

    def skip(self, image: Committed) -> None:
        """Forget the slot: drafting starts over after the image."""
        self.rollback(image.slot, 0)

    def rollback(self, slot: int, position: int) -> None:
        if position < self._slots[slot].end:
            self._slots[slot] = NewestState()

    def copy_slot(self, source: int, target: int, position: int) -> None:
        self._slots[target] = replace(self._slots[source])
        self.rollback(target, position)

    def swapped_bytes(self, slot: int) -> int:
        return 0

    def swap_out(self, slot: int) -> Swapped[NewestState[StateT]]:
        return Swapped(replace(self._slots[slot]))

    def swap_in(self, slot: int, swapped: Swapped[NewestState[StateT]], tokens: Sequence[int]) -> None:
        self._slots[slot] = replace(swapped.state)
