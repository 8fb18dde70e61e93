"""The drafting state of answers, as it is shown: on, asleep or off, with the reason."""

from __future__ import annotations

from collections.abc import Iterable

from eaglelocal.core.drafting_words import SWITCHED_OFF
from eaglelocal.speculation.policy.controller import Controller
from eaglelocal.speculation.policy.draft_gate import GateState

SHOWN_FIRST = ("on", "asleep", "off")


class SlotDraftingStates:
    """Reads drafting states from the controller.

    off_reason  why nothing is drafted; None if there are drafters
    """

    def __init__(self, controller: Controller, off_reason: str | None) -> None:
        self._controller, self._off_reason = controller, off_reason

    def read(self, slot: int) -> tuple[str, str]:
        """Return the state of the slot's answer, and the reason for it."""
        if self._off_reason is not None:
            return "off", self._off_reason
        state, reason = self._controller.state(slot)
        return name_state(state), reason

    def read_all(self, slots: Iterable[int]) -> tuple[str, str]:
        """Return the state of all these slots together, with its reason: on if any is drafted for.

        Without slots, return the state that the next answer would start with.
        """
        if self._off_reason is not None:
            return "off", self._off_reason
        states = dict(map(self.read, slots))
        if not states:
            return ("on", "") if self._controller.spec.max_draft else ("off", SWITCHED_OFF)
        return min(states.items(), key=lambda each: SHOWN_FIRST.index(each[0]))


def name_state(state: GateState | None) -> str:
    """Return the state to show: on, asleep or off. A probe is too short to show and counts as asleep."""
    if state is None:
        return "off"
    return "on" if state is GateState.AWAKE else "asleep"
